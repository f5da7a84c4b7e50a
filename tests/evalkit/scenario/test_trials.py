"""A rule on pass_hat_k whose k no dialogue has trials for is refused, since it could never be decided."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.scenario.loader import load_scenario

TALK = "{{id: {0}, tags: [{0}], turns: [{{user: {1}, gold: hello}}]}}"


def write(
    folder: Path,
    k: int,
    plan: str = "trials: 3, variation: [paraphrase]",
    *,
    more: str = "",
    by_file: bool = False,
) -> Path:
    talks = [TALK.format("spoken", "[hi, hey, hallo]"), TALK.format("fixed", "hi")]
    (folder / "d.yaml").write_text(f"dialogues: [{', '.join(talks)}]\n")
    rule = f"- {{metric: dialogue/pass_hat_k, k: {k}, min: 0.5{more}}}"
    (folder / "policy.yaml").write_text(f"confidence: 0.95\nrules:\n  {rule}\n")
    gate = "policy: policy.yaml" if by_file else f"rules:\n    {rule}"
    path = folder / "scenario.yaml"
    path.write_text(
        f"version: 1\nname: s\nmodel: {{bundle: b}}\ndialogues: {{include: [d.yaml], {plan}}}\ngate:\n  {gate}\n"
    )
    return path


@pytest.mark.parametrize(("by_file", "at"), [(False, "scenario.yaml:7: gate."), (True, "policy.yaml:3: ")])
def test_more_than_the_trials_is_refused_with_rule_k_and_trials(
    tmp_path: Path, by_file: bool, at: str
) -> None:
    path = write(tmp_path, 5, by_file=by_file)
    for command in (["validate", str(path)], ["run", str(path), "--out", str(tmp_path / "run")]):
        done = CliRunner().invoke(cli, command)
        assert isinstance(done.exception, InputError)
        assert str(done.exception).endswith(
            f"{at}rules.0.k: dialogue/pass_hat_k with k = 5 needs 5 trials of a dialogue, the scenario plays 3 "
            "(dialogues.trials): it could never be decided; raise trials, or lower k"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_up_to_the_trials_is_sound(tmp_path: Path, k: int) -> None:
    assert load_scenario(write(tmp_path, k)).policy is not None


@pytest.mark.parametrize(
    ("k", "plan", "more", "sound"),
    [
        (1, "trials: 3", "", True),
        (2, "trials: 3", "", False),
        (2, "trials: 3, temperature: 0.7", "", True),
        (4, "trials: 4, variation: [paraphrase]", "", False),
        (4, "trials: 4, variation: [paraphrase, typos]", "", True),
        (2, "trials: 3, variation: [paraphrase]", ", slice: fixed", False),
        (2, "trials: 3, variation: [paraphrase]", ", slice: spoken", True),
    ],
)
def test_copies_count_as_one_trial(tmp_path: Path, k: int, plan: str, more: str, sound: bool) -> None:
    path = write(tmp_path, k, plan, more=more)
    if sound:
        load_scenario(path)
        return
    with pytest.raises(
        InputError, match=r"rules\.0\.k: .* of the [34] .* [13] at most differ: .*dialogues\.variation"
    ):
        load_scenario(path)


def test_a_figure_is_held_to_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    path.write_text(path.read_text() + "business: [{name: sure, from: dialogue/pass_hat_k, k: 4}]\n")
    with pytest.raises(InputError, match=r"scenario\.yaml:8: business\.0\.k: .* k = 4 needs 4 trials"):
        load_scenario(path)


def alias_set(policy: Path, scenario: Path) -> Result:
    command = ["alias", "set", "production", "--policy", str(policy), "--scenario", str(scenario)]
    return CliRunner().invoke(cli, command)


def test_an_alias_demands_no_more_than_its_scenario_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALKIT_HOME", str(tmp_path / "home"))
    scenario = write(tmp_path, 4)
    scenario.write_text(scenario.read_text().split("gate:")[0])
    done = alias_set(tmp_path / "policy.yaml", scenario)
    assert "policy.yaml:3: rules.0.k: dialogue/pass_hat_k with k = 4 needs 4 trials" in str(done.exception)
    (tmp_path / "other").mkdir()
    gate = write(tmp_path / "other", 4, "trials: 4, variation: [paraphrase, typos]")
    done = alias_set(gate, scenario)
    assert "other/scenario.yaml:7: gate.rules.0.k: dialogue/pass_hat_k with k = 4 needs" in str(
        done.exception
    )


def test_an_alias_demands_nothing_that_stands_on_a_played_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALKIT_HOME", str(tmp_path / "home"))
    scenario = write(tmp_path, 1)
    scenario.write_text(scenario.read_text().split("gate:")[0])
    user = "user: {kind: model, endpoint: 'http://x/v1', model: m, declare: m}"
    (tmp_path / "d.yaml").write_text(f"id: d\n{user}\nturns: [{{user: hi, gold: hello}}]\n")
    done = alias_set(tmp_path / "policy.yaml", scenario)
    assert "a model plays the user, and the blocking rule on dialogue/pass_hat_k of" in str(done.exception)
