"""Flow folders, and what `evalkit validate` says of each kind of file."""

import os
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.scenario.flow import load_flow
from evalkit.scenario.validate import validate

FLOW = """\
version: 1
name: banking
intent: {model: intent.skops, out_of_scope_below: 0.35}
handover:
  intents: [contact_human]
  words: {en: [lawyer], zh: [投诉]}
  after_failed_turns: 2
  threshold: 0.5
  reply: {en: "I am connecting you to a colleague."}
satisfaction: {model: satisfaction.skops}
"""

DIALOGUE = "id: one\nturns:\n  - {user: Hello., gold: Hello there., expect: {contains: [there]}}\n"


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    """A flow folder with artefacts and one model card."""
    folder = tmp_path / "flow"
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW, encoding="utf-8")
    (folder / "intent.skops").write_bytes(b"intent")
    (folder / "satisfaction.skops").write_bytes(b"satisfaction")
    (folder / "satisfaction.card.json").write_text('{"mean_absolute_error": 0.4}')
    return folder


def test_the_example_of_the_contract_loads(flow: Path) -> None:
    loaded = load_flow(flow)
    assert loaded.flow.handover is not None and loaded.flow.handover.intents == ["contact_human"]
    assert loaded.model_card("satisfaction") == {"mean_absolute_error": 0.4}
    assert loaded.model_card("intent") is None


def test_the_digest_covers_flow_artefacts_and_cards(flow: Path) -> None:
    first = load_flow(flow).digest
    (flow / "README.md").write_text("not part of it")
    (flow / "flow.yaml").write_text("# a comment\n" + FLOW, encoding="utf-8")
    assert load_flow(flow).digest == first
    for name in ("intent.skops", "satisfaction.card.json"):
        content = (flow / name).read_bytes()
        (flow / name).write_bytes(b'{"other": 1}')
        assert load_flow(flow).digest != first
        (flow / name).write_bytes(content)
    assert load_flow(flow).digest == first


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("threshold: 0.5", "threshold: 2", r"flow\.yaml:8: handover\.threshold"),
        ("name: banking", "nam: banking", r"flow\.yaml:2: nam: unknown key"),
        ("model: intent.skops", "model: ../x.skops", r"intent\.model: leaves the flow's folder"),
        (
            "model: intent.skops",
            "model: x.skops",
            r"flow\.yaml:3: intent\.model: .*missing or empty; train it",
        ),
        ('{en: "I am connecting you to a colleague."}', "{}", r"flow\.yaml:9: handover\.reply"),
    ],
)
def test_problems_name_file_line_and_field(flow: Path, old: str, new: str, problem: str) -> None:
    (flow / "flow.yaml").write_text(FLOW.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        load_flow(flow)


def test_a_broken_model_card(flow: Path) -> None:
    (flow / "satisfaction.card.json").write_text("{")
    with pytest.raises(InputError, match=r"satisfaction\.card\.json:1: broken JSON"):
        load_flow(flow).model_card("satisfaction")


def test_each_kind_of_file_is_told_apart(flow: Path, tmp_path: Path) -> None:
    texts = {
        "dialogue": DIALOGUE,
        "policy": "rules:\n  - {metric: perplexity/token, max: 3}\n",
        "scenario": "version: 1\nname: x\ndialogues: {include: [dialogue.yaml]}\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert validate(tmp_path / "dialogue.yaml", run_self_test=False).dialogues == 1
    assert validate(tmp_path / "policy.yaml", run_self_test=False).kind == "policy"
    scenario = validate(tmp_path / "scenario.yaml", run_self_test=True)
    assert (scenario.kind, scenario.dialogues, scenario.problems) == ("scenario", 1, ())
    assert scenario.digest is not None
    for path in (flow, flow / "flow.yaml"):
        assert validate(path, run_self_test=False).kind == "flow"


def test_the_self_test_reports_problems_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(DIALOGUE.replace("[there]", "[here, world]"))
    validation = validate(path, run_self_test=True)
    assert (
        len(validation.problems) == 1
        and "d.yaml:1: one: the gold agent fails contains 'world'" in validation.problems[0]
    )
    assert validate(path, run_self_test=False).problems == ()


def test_what_can_not_be_validated(flow: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("colour: red\n")
    with pytest.raises(InputError, match="neither a scenario"):
        validate(path, run_self_test=False)
    with pytest.raises(InputError, match="plays dialogues, and there are none"):
        validate(flow, run_self_test=True)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe: a pipe or a device; a file is needed"):
        validate(pipe, run_self_test=False)
