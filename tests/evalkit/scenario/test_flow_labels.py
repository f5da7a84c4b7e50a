"""Labels that dialogues and policies expect are labels that the flow's recogniser can give."""

import json
from pathlib import Path

import pytest

from evalkit.canonical import sha256_bytes
from evalkit.errors import InputError
from evalkit.scenario.flow import HandoverCosts, HandoverPolicy, load_flow
from evalkit.scenario.loader import load_scenario
from evalkit.scenario.setup import dialogue_setup
from evalkit.scenario.validate import validate

FLOW = """\
version: 1
name: banking
intent: {model: intent.skops}
handover: {intents: [contact_human], reply: {en: "One moment."}}
satisfaction: {model: satisfaction.skops}
"""
DIALOGUE = "id: one\nturns:\n  - {user: Hello., gold: Hello there., expect: {intent: greeting}}\n"
SCENARIO = "version: 1\nname: x\nflow: flow\ndialogues: {include: [dialogue.yaml]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scenario with a flow whose card tells its labels."""
    flow = tmp_path / "flow"
    flow.mkdir()
    (flow / "flow.yaml").write_text(FLOW)
    for kind in ("intent", "satisfaction"):
        (flow / f"{kind}.skops").write_bytes(kind.encode())
    labels = {"greeting": 9, "contact_human": 9}
    card(flow, "intent", labels=labels)
    card(flow, "satisfaction", data="rated", mean_absolute_error=0.3)
    (tmp_path / "dialogue.yaml").write_text(DIALOGUE)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path


def card(flow: Path, kind: str, **content: object) -> None:
    content = {"artefact_sha256": sha256_bytes(kind.encode())} | content
    (flow / f"{kind}.card.json").write_text(json.dumps(content))


def test_known_labels_pass(folder: Path) -> None:
    assert validate(folder / "scenario.yaml", run_self_test=False).kind == "scenario"


def test_an_expected_intent_that_the_flow_never_gives_is_named(folder: Path) -> None:
    (folder / "dialogue.yaml").write_text(DIALOGUE.replace("greeting", "greetings"))
    with pytest.raises(InputError) as error:
        validate(folder / "scenario.yaml", run_self_test=False)
    assert "dialogue.yaml:1: one: turns.0.expect.intent: 'greetings' isn't a label" in str(error.value)
    assert "did you mean greeting?" in str(error.value)


def test_a_handover_intent_that_the_flow_never_gives_is_named(folder: Path) -> None:
    card(folder / "flow", "intent", labels={"greeting": 9})
    for path in ("scenario.yaml", "flow"):
        with pytest.raises(
            InputError, match=r"flow\.yaml:4: handover\.intents\.0: 'contact_human' isn't a label"
        ):
            validate(folder / path, run_self_test=False)


def test_without_a_card_nothing_is_known_of_the_labels(folder: Path) -> None:
    (folder / "flow" / "intent.card.json").unlink()
    assert load_flow(folder / "flow").intent_labels() is None
    validate(folder / "scenario.yaml", run_self_test=False)


def test_a_card_of_another_artefact_is_refused(folder: Path) -> None:
    (folder / "flow" / "intent.skops").write_bytes(b"trained again")
    with pytest.raises(InputError, match=r"intent\.card\.json: describes another artefact"):
        load_flow(folder / "flow")


def test_only_a_card_that_names_its_artefact_says_where_ratings_come_from(folder: Path) -> None:
    setup = dialogue_setup(load_scenario(folder / "scenario.yaml"))
    assert setup is not None and (setup.satisfaction_data, setup.satisfaction_error) == ("rated", 0.3)
    card(folder / "flow", "satisfaction", data="rated", mean_absolute_error=0.3, artefact_sha256=None)
    setup = dialogue_setup(load_scenario(folder / "scenario.yaml"))
    assert setup is not None and (setup.satisfaction_data, setup.satisfaction_error) == (None, 0.3)


def test_costs_say_from_where_on_a_handover_is_decided() -> None:
    def policy(**fields: object) -> HandoverPolicy:
        return HandoverPolicy.model_validate({"reply": {"en": "x"}, **fields})

    assert policy().decided_from == 0.5 and policy(threshold=0.0).decided_from == 0.0
    assert policy(costs={"needless": 1, "missed": 4}).decided_from == pytest.approx(0.2)
    with pytest.raises(ValueError, match="keep one"):
        policy(threshold=0.5, costs=HandoverCosts(needless=1, missed=1))


@pytest.mark.parametrize(
    ("error", "shown"), [(-0.3, "-0.3"), (True, "true"), ("0.3", "'0.3'"), (None, "null")]
)
def test_an_error_that_would_narrow_an_interval_is_refused(folder: Path, error: object, shown: str) -> None:
    card(folder / "flow", "satisfaction", data="rated", mean_absolute_error=error)
    loaded = load_scenario(folder / "scenario.yaml")
    with pytest.raises(InputError, match=r"satisfaction.card.json: mean_absolute_error: .*\(got " + shown):
        dialogue_setup(loaded)
