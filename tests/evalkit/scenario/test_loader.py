"""Scenario files: strict, resolved, with a digest that names what is measured on what."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.scenario.loader import LoadedScenario, load_scenario
from evalkit.scenario.setup import dialogue_setup

SCENARIO = """\
version: 1
name: small
seed: 7
model: {bundle: bundles/candidate}
baseline: {bundle: ../released}
text:
  data: texts.jsonl
  classes: {counts: counts.tsv.gz, domain: {glossary: terms.txt}}
risk: {data: risk.jsonl, labels: [approve, reject], high_risk: reject}
dialogues:
  include: [dialogues/*.yaml]
  trials: 2
  variation: [paraphrase]
  budget_ms: {first_token: 15}
gate:
  rules:
    - {metric: perplexity/token, max: 60}
"""

DIALOGUE = """\
id: one
tags: [cards]
turns:
  - user: [Hello., Hi.]
    gold: Hello there.
    expect: {contains: [there]}
"""

Maker = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Writes a whole scenario folder; keyword arguments replace (or, with None, remove) files."""

    def write(**changes: str | None) -> Path:
        files: dict[str, str | None] = {
            "scenario.yaml": SCENARIO,
            "texts.jsonl": '{"id": "a", "text": "hello"}\n',
            "counts.tsv.gz": "x",
            "terms.txt": "card\n",
            "risk.jsonl": '{"id": "a", "prompt": "p", "target": "approve"}\n',
            "dialogues/one.yaml": DIALOGUE,
        }
        names = {
            "scenario": "scenario.yaml",
            "texts": "texts.jsonl",
            "terms": "terms.txt",
            "risk": "risk.jsonl",
        }
        names |= {"dialogue": "dialogues/one.yaml", "counts": "counts.tsv.gz", "policy": "policy.yaml"}
        files |= {names[key]: value for key, value in changes.items()}
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(content, encoding="utf-8")
        return tmp_path / "scenario.yaml"

    return write


def test_every_reference_becomes_an_absolute_path(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make()
    monkeypatch.chdir(path.parent)
    loaded = load_scenario(Path("scenario.yaml"))
    folder = path.parent.resolve()
    assert loaded.bundle == folder / "bundles" / "candidate"
    assert loaded.baseline == folder.parent / "released"
    assert loaded.text_data == folder / "texts.jsonl" and loaded.glossary == folder / "terms.txt"
    assert loaded.counts_file == folder / "counts.tsv.gz" and loaded.risk_data == folder / "risk.jsonl"
    assert loaded.dialogue_files == (folder / "dialogues" / "one.yaml",)
    assert [item.dialogue.id for item in loaded.dialogues] == ["one"]
    assert loaded.policy is not None and loaded.policy.confidence == 0.95
    assert loaded.source.line(("text", "data")) == 7


def test_an_alias_as_baseline_is_kept_for_the_run_and_changes_no_digest(make: Maker) -> None:
    named = load_scenario(make())
    loaded = load_scenario(make(scenario=SCENARIO.replace("bundle: ../released", "alias: production")))
    assert (loaded.baseline_alias, loaded.baseline, loaded.baseline_model) == ("production", None, None)
    assert named.baseline_alias is None
    assert loaded.digest == named.digest


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("seed: 7", "sed: 7", r"scenario\.yaml:3: sed: unknown key"),
        ("seed: 7", "name: again", r"scenario\.yaml:3: name: key given twice"),
        ("version: 1", "version: 2", r"scenario\.yaml:1: version: Input should be 1"),
        (
            "data: texts.jsonl",
            "data: other.jsonl",
            r"scenario\.yaml:7: text\.data: .*other\.jsonl: no such file",
        ),
        ("data: texts.jsonl", "data: dialogues", r"text\.data: .* is a folder"),
        (
            "glossary: terms.txt",
            "glossary: x.txt",
            r"scenario\.yaml:8: text\.classes\.domain\.glossary: .*no such",
        ),
        ("counts: counts.tsv.gz", "counts: x.gz", r"text\.classes\.counts: .*no such file"),
        ("data: risk.jsonl", "data: x.jsonl", r"scenario\.yaml:9: risk\.data: .*no such file"),
        (
            "[dialogues/*.yaml]",
            "[dialogues/*.yaml, more/*]",
            r"scenario\.yaml:11: dialogues\.include\.1: 'more/\*'",
        ),
        ("seed: 7", "flow: flow", r"scenario\.yaml:3: flow: .*no such flow folder"),
        ("trials: 2", "trials: [", "broken YAML"),
        (
            "perplexity/token",
            "perplexity/tokn",
            r"scenario\.yaml:17: gate\.rules\.0\.metric: unknown metric .*did you",
        ),
        ("trials: 2", "trials: 0", r"scenario\.yaml:12: dialogues\.trials"),
        (
            "bundle: ../released",
            "alias: production, bundle: x",
            r"scenario\.yaml:5: baseline\.bundle: unknown key",
        ),
        ("bundle: ../released", "alias: ''", r"scenario\.yaml:5: baseline\.alias"),
        ("bundle: bundles/candidate", "alias: production", r"scenario\.yaml:4: model\.alias: unknown key"),
    ],
)
def test_problems_name_file_line_and_field(make: Maker, old: str, new: str, problem: str) -> None:
    assert old in SCENARIO
    with pytest.raises(InputError, match=problem):
        load_scenario(make(scenario=SCENARIO.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("file", "field"), [("texts", "text.data"), ("terms", "glossary"), ("risk", "risk.data")]
)
def test_empty_files_are_refused(make: Maker, file: str, field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: .*the file is empty"):
        load_scenario(make(**{file: ""}))


def test_a_missing_scenario(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; check the path"):
        load_scenario(tmp_path / "none.yaml")


def test_a_policy_of_its_own_file_is_put_in_place(make: Maker) -> None:
    gate = SCENARIO[SCENARIO.index("gate:") :]
    inside = load_scenario(make())
    apart = SCENARIO.replace(gate, "gate: {policy: policy.yaml}\n")
    loaded = load_scenario(make(scenario=apart, policy="rules:\n  - {metric: perplexity/token, max: 60}\n"))
    assert loaded.policy == inside.policy
    assert loaded.policy_source.path == inside.source.path.parent.resolve() / "policy.yaml"
    assert loaded.digest == inside.digest
    with pytest.raises(InputError, match=r"policy\.yaml:1: rule: unknown key"):
        load_scenario(make(scenario=apart, policy="rule: []\n"))
    with pytest.raises(InputError, match=r"gate\.policy: .*no such file"):
        load_scenario(make(scenario=apart, policy=None))


def test_expectations_of_the_flow_need_a_flow(make: Maker) -> None:
    dialogue = DIALOGUE.replace("{contains: [there]}", "{intent: greeting}")
    with pytest.raises(
        InputError, match=r"one\.yaml:1: one: turn 1 expects an intent or a hand-over, but .* no flow"
    ):
        load_scenario(make(dialogue=dialogue))


def digest(loaded: LoadedScenario) -> str:
    return loaded.digest


def test_the_digest_says_what_is_measured_on_what(make: Maker) -> None:
    first = load_scenario(make()).digest
    assert len(first) == 64

    def other(**changes: str | None) -> bool:
        return load_scenario(make(**changes)).digest != first

    # Models, policy and output don't change what a number means; nor do comments and spacing.
    assert not other(scenario=SCENARIO.replace("bundles/candidate", "elsewhere"))
    assert not other(scenario=SCENARIO.replace("max: 60", "max: 50"))
    assert not other(scenario=SCENARIO + "output: {formats: [junit]}\n# a comment\n")
    assert other(scenario=SCENARIO.replace("seed: 7", "seed: 8"))
    assert other(scenario=SCENARIO.replace("trials: 2", "trials: 3"))
    assert other(texts='{"id": "a", "text": "hallo"}\n')
    assert other(terms="account\n")
    assert other(counts="y")
    assert other(risk='{"id": "a", "prompt": "q", "target": "approve"}\n')
    assert other(dialogue=DIALOGUE.replace("Hi.", "Hey."))


def test_the_plan_of_the_dialogues(make: Maker) -> None:
    setup = dialogue_setup(load_scenario(make()))
    assert setup is not None
    assert (setup.dialogue_ids, setup.trials, setup.turns, setup.tags) == (
        ("one",),
        2,
        {"one": 1},
        {"one": ["cards"]},
    )
    assert (setup.first_token_ms, setup.turn_overhead_ms, setup.satisfaction_error) == (15, None, None)
    plain = load_scenario(make(dialogue=DIALOGUE.replace("[Hello., Hi.]", "Hello.")))
    without = dialogue_setup(plain)
    assert without is not None and (without.varies, without.unvaried) == (False, ("one",))
