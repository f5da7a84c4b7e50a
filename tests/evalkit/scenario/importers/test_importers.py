"""Existing test dialogues become dialogue files; what can't be converted is counted and named."""

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.dialogue_files import read_dialogues
from evalkit.scenario.expectations import self_test
from evalkit.scenario.importers.convert import ACCOUNT, Imported, dump_dialogues, import_dialogues
from evalkit.scenario.validate import validate

RASA = Path(__file__).parent / "rasa_bank"


def frame(
    slots: Sequence[tuple[str, int, int]] = (), acts: Sequence[tuple[str, str, str]] = ()
) -> list[dict[str, Any]]:
    return [
        {
            "service": "Banks_1",
            "slots": [{"slot": name, "start": start, "exclusive_end": end} for name, start, end in slots],
            "actions": [{"act": act, "slot": slot, "values": [value]} for act, slot, value in acts],
        }
    ]


SGD = {
    "dialogue_id": "1_1",
    "services": ["Banks_1"],
    "turns": [
        {"speaker": "USER", "utterance": "Send $20 to Amir.", "frames": frame([("amount", 5, 8), ("name", 12, 16)])},
        {"speaker": "SYSTEM", "utterance": "From which account?", "frames": frame([], [("REQUEST", "account", "")])},
        {"speaker": "USER", "utterance": "Checking.", "frames": frame()},
        {
            "speaker": "SYSTEM",
            "utterance": "$20 go to Amir, you have $7 left.",
            "frames": frame([], [("CONFIRM", "amount", "$20"), ("CONFIRM", "name", "Amir"), ("INFORM", "balance", "$7")]),
        },
    ],
}  # fmt: skip


def message(role: str, content: str, *acts: list[str]) -> dict[str, Any]:
    return {"role": role, "content": content, "dialog_act": list(acts)}


CROSSWOZ = {
    "messages": [
        message(
            "usr",
            "我想去恭王府，评分多少？",
            ["Inform", "景点", "名称", "恭王府"],
            ["Request", "景点", "评分", ""],
        ),
        message("sys", "评分是4.5分。", ["Inform", "景点", "评分", "4.5分"]),
        message("usr", "门票呢？", ["Request", "景点", "门票", ""]),
        message("sys", "恭王府的门票是40元。", ["Inform", "景点", "门票", "40元"]),
    ]
}


def task(name: str, instructions: str, *actions: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "user_scenario": {"instructions": instructions},
        "evaluation_criteria": {"actions": list(actions), "reward_basis": ["DB"]},
    }


def action(name: str, requestor: str = "assistant", /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "requestor": requestor, "arguments": arguments}


def converted(out: Path, found: Imported) -> dict[str, Dialogue]:
    return {item.dialogue.id: item.dialogue for item in read_dialogues([out / name for name in found.files])}


def test_sgd_slots_become_facts_and_confirmations_probes(tmp_path: Path) -> None:
    silent = {**SGD, "dialogue_id": "1_2", "turns": SGD["turns"][:2]}
    alone = {**SGD, "dialogue_id": "1_3", "turns": SGD["turns"][:1]}
    source = tmp_path / "dialogues_001.json"
    source.write_text(json.dumps([SGD, silent, alone, {"dialogue_id": "1_4"}]))
    found = import_dialogues("sgd", tmp_path, tmp_path / "out")
    assert (found.found, found.converted, found.weak) == (4, ("sgd_1_1",), ())
    assert [item.source for item in found.skipped] == [
        f"dialogues_001.json: 1_{number}" for number in (2, 3, 4)
    ]
    assert "nothing to check" in found.skipped[0].reason and "take turns" in found.skipped[1].reason
    assert found.unchecked == {"values that the system takes from a service": 1}
    dialogue = converted(tmp_path / "out", found)["sgd_1_1"]
    assert dialogue.facts == {"amount": "$20", "name": "Amir"}
    assert dialogue.turns[0].user == ["Send {amount} to {name}."]
    assert dialogue.turns[1].expect.recalls == ["amount", "name"]
    assert (
        json.loads((tmp_path / "out" / ACCOUNT).read_text())["skipped"][2]["source"]
        == "dialogues_001.json: 1_4"
    )


def test_crosswoz_is_read_from_its_zip(tmp_path: Path) -> None:
    source = tmp_path / "val.json.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("val.json", json.dumps({"7": CROSSWOZ, "8": {"messages": []}}, ensure_ascii=False))
    found = import_dialogues("crosswoz", source, tmp_path / "out")
    dialogue = converted(tmp_path / "out", found)["crosswoz_7"]
    assert dialogue.locale == "zh" and dialogue.facts == {"attraction_name": "恭王府"}
    assert dialogue.turns[1].expect.recalls == ["attraction_name"]
    assert len(dialogue.turns[1].expect.matches) == 1  # a ticket has a price, whichever it is
    assert [item.source for item in found.skipped] == ["val.json.zip: 8"]


def test_crosswoz_is_streamed_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.scenario.importers.crosswoz._CHUNK", 7)
    source = tmp_path / "val.json"
    source.write_text(
        json.dumps({str(number): CROSSWOZ for number in range(3)}, ensure_ascii=False, indent=1)
    )
    assert len(import_dialogues("crosswoz", source, tmp_path / "out").converted) == 3
    source.write_text(source.read_text()[:-40])
    with pytest.raises(InputError, match="broken JSON"):
        import_dialogues("crosswoz", source, tmp_path / "other")


def test_a_damaged_crosswoz_file_is_one_line(tmp_path: Path) -> None:
    source = tmp_path / "val.json.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("val.json", json.dumps({str(number): CROSSWOZ for number in range(50)}))
    whole = source.read_bytes()
    central = whole.index(b"PK\x01\x02")
    # The flag of a password, a compression that nobody knows, a broken stream.
    for place, value in ((6, 1), (8, 99), (60, whole[60] ^ 0xFF)):
        damaged = bytearray(whole)
        damaged[place] = value
        if place < 10:
            damaged[central + place + 2] = value
        source.write_bytes(damaged)
        with pytest.raises(InputError, match="can't be"):
            import_dialogues("crosswoz", source, tmp_path / "out")


def test_rasa_stories_of_our_own_convert(tmp_path: Path) -> None:
    found = import_dialogues("rasa", RASA, tmp_path / "out")
    dialogues = converted(tmp_path / "out", found)
    assert list(dialogues) == ["rasa_asks_for_a_person", "rasa_greets", "rasa_transfer_to_a_friend"]
    transfer = dialogues["rasa_transfer_to_a_friend"]
    assert transfer.facts == {"amount": "50 euro", "recipient": "Anna"}
    assert transfer.turns[1].user == ["please send {amount} to {recipient}"]
    assert transfer.turns[1].expect.intent == "transfer_money"
    assert transfer.turns[1].expect.contains == ["I send {amount} to {recipient}."]
    assert len(transfer.turns[0].expect.matches) == len(transfer.turns[2].expect.matches) == 1
    person = dialogues["rasa_asks_for_a_person"]
    assert person.turns[0].expect.handover is not None and person.turns[0].expect.handover.required
    assert {item.source.partition(": ")[2]: item.reason for item in found.skipped} == {
        "two in one": "a step with `or` stands for several stories; write them out",
        "says nothing that is known": "nothing to check: no statement of the source can be tested in a reply's text",
    }
    assert found.unchecked["custom actions and forms"] == 1
    assert found.unchecked["steps of kind slot_was_set"] == 1
    assert not any("utter_unknown" in what for what in found.unchecked)  # that of a skipped story


def test_tau2_keeps_opening_identity_and_handover(tmp_path: Path) -> None:
    verified = action("log_verification", name="Ann Lee", email="ann@example.com")
    tasks = [
        task("a", 'Flow: **Opening:** "I want to close my card today."', verified, action("close_card")),
        task("b", "You are Bob. You're looking for a card for your trips.", action("apply_for_credit_card", "user", card_type="EcoCard")),
        task("c", "You want to change your email.", action("transfer_to_human_agents")),
        task("d", 'Say "my card was stolen, help me".', action("request_human_agent_transfer", "user"), action("transfer_to_human_agents")),
        task("e", "Nothing."),
        task("f", "You want to know the time."),
    ]  # fmt: skip
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    found = import_dialogues("tau2", tmp_path, tmp_path / "out")
    texts = {key.rpartition("_")[2]: one for key, one in converted(tmp_path / "out", found).items()}
    assert texts["a"].turns[1].user == ["My name is {name}. My email is {email}."]
    assert texts["a"].turns[0].expect.matches and texts["a"].end_state.handed_over is False
    assert texts["b"].turns[0].user == ["I'm looking for a card for my trips."]
    assert texts["b"].turns[0].expect.contains == ["EcoCard"]
    assert texts["c"].handover_window == (0, 0) and texts["d"].handover_window == (1, 1)
    assert [item.source for item in found.skipped] == ["tasks.json: e", "tasks.json: f"]
    assert found.unchecked["gold actions (tool calls)"] == 1


@pytest.mark.parametrize(
    ("kind", "path", "least"),
    [
        ("sgd", "sgd_banks_payment", 240),
        ("crosswoz", "crosswoz/val.json.zip", 450),
        ("tau2", "tau2_banking", 96),
    ],
)
def test_real_corpora_convert_and_pass_validate(
    shared_data: Path, tmp_path: Path, kind: str, path: str, least: int
) -> None:
    found = import_dialogues(kind, shared_data / "dialogues" / path, tmp_path / "out")
    assert len(found.converted) >= least and found.found == len(found.converted) + len(found.skipped)
    validation = validate(tmp_path / "out" / found.files[0], run_self_test=False)
    assert (validation.kind, validation.dialogues) == ("dialogue", min(100, len(found.converted)))
    sources = read_dialogues([tmp_path / "out" / name for name in found.files])
    problems = self_test(sources)
    assert len(problems) == len(found.weak) and all(
        "the echo agent passes" in problem for problem in problems
    )


def test_texts_that_look_like_other_types_are_read_back(tmp_path: Path) -> None:
    texts = [
        "1e5",
        "0123",
        "12:30",
        "true",
        "null",
        "a: b",
        "- x",
        "#",
        "é, 你好",
        "line\nbreak",
        "{x",
        "~",
        "=",
        "no",
    ]
    turns = [{"user": text, "gold": "ok"} for text in texts]
    file = tmp_path / "a.yaml"
    file.write_text(dump_dialogues([{"id": "x", "turns": turns}]), encoding="utf-8")
    assert [turn.user[0] for turn in read_dialogues([file])[0].dialogue.turns] == texts


def test_half_characters_are_skipped_and_named(tmp_path: Path) -> None:
    broken = {**SGD, "dialogue_id": "\ud800"}
    (tmp_path / "dialogues_1.json").write_text(json.dumps([SGD, broken]))
    found = import_dialogues("sgd", tmp_path, tmp_path / "out")
    (skipped,) = found.skipped
    assert skipped.source.endswith("\\ud800") and "lone surrogate" in skipped.reason


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("sgd", "dialogues_1.json", "[", "broken JSON"),
        ("sgd", "dialogues_1.json", "[" * 100_000, "nested too deeply"),
        ("tau2", "tasks.json", "[" * 100_000, "nested too deeply"),
        ("sgd", "dialogues_1.json", "{}", "a list of dialogues"),
        ("sgd", "other.txt", "", "no dialogues_"),
        ("crosswoz", "val.json", "[]", "a JSON object"),
        ("crosswoz", "val.json", '{"7": 5}\n{"8": 5}', "something follows the object"),
        ("crosswoz", "val.json", '{"7": ' + "[" * 100_000, "nested too deeply"),
        ("rasa", "x.yml", "stories: [", "broken YAML"),
        ("rasa", "x.yml", "rules: []", "no stories and no test_cases"),
        ("rasa", "x.yml", "stories: 5", "x.yml:1: stories: a list is needed"),
        (
            "rasa",
            "x.yml",
            "stories: []\nresponses: {utter_a: 5}",
            "x.yml:2: responses.utter_a: a list of texts",
        ),
        (
            "rasa",
            "x.yml",
            "stories: []\nresponses:\n  utter_a:\n  - text: true",
            r"x.yml:4: responses.utter_a.0.text: a text is needed \(got true\)",
        ),
        ("tau2", "tasks.json", "{}", "a list of tasks"),
        ("tau2", "tasks.json", "[]", "no dialogue could be converted"),
    ],
)
def test_a_bad_source_is_one_line(tmp_path: Path, kind: str, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    source = tmp_path / name if kind == "crosswoz" else tmp_path
    with pytest.raises(InputError, match=message):
        import_dialogues(kind, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"turns": 5}, "turns: Input should be a valid list"),
        ({"services": "Banks_1"}, "services: Input should be a valid list"),
        ({"turns": [{"speaker": "USER", "frames": []}]}, "turns.0.utterance: is required"),
        (
            {"turns": [{**SGD["turns"][0], "utterance": None}]},
            "turns.0.utterance: Input should be a valid string",
        ),
    ],
)
def test_a_malformed_sgd_dialogue_is_skipped_with_the_field(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows = [SGD, {**SGD, "dialogue_id": "1_2", **changes}, ["x"], {**SGD, "dialogue_id": True}]
    (tmp_path / "dialogues_1.json").write_text(json.dumps(rows))
    found = import_dialogues("sgd", tmp_path, tmp_path / "out")
    assert [(item.source, item.reason) for item in found.skipped] == [
        ("dialogues_1.json: 1_2", f"isn't an SGD dialogue: {reason}"),
        ("dialogues_1.json: dialogue 3", "isn't an SGD dialogue: Input should be a valid dictionary"),
        (
            "dialogues_1.json: dialogue 4",
            "isn't an SGD dialogue: dialogue_id: Input should be a valid string",
        ),
    ]


def test_malformed_crosswoz_dialogues_and_tau2_tasks_are_skipped_with_the_field(tmp_path: Path) -> None:
    short = {"messages": [message("usr", "好", ["Inform"]), message("sys", "好")]}
    split = tmp_path / "val.json"
    split.write_text(json.dumps({"7": CROSSWOZ, "8": short, "9": None}, ensure_ascii=False))
    found = import_dialogues("crosswoz", split, tmp_path / "crosswoz")
    assert [item.reason for item in found.skipped] == [
        "isn't a CrossWOZ dialogue: messages.0.dialog_act.0: List should have at least 4 items after validation, not 1",
        "isn't a CrossWOZ dialogue: Input should be a valid dictionary",
    ]
    good = task("a", "You want to change your email.", action("transfer_to_human_agents"))
    (tmp_path / "tasks.json").write_text(json.dumps([good, {**good, "id": "b", "user_scenario": {}}, 5]))
    found = import_dialogues("tau2", tmp_path / "tasks.json", tmp_path / "tau2")
    assert [(item.source, item.reason) for item in found.skipped] == [
        ("tasks.json: b", "isn't a tau2 task: user_scenario.instructions: is required"),
        ("tasks.json: task 3", "isn't a tau2 task: Input should be a valid dictionary"),
    ]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("user:", "`user` of a step is null, a text is needed"),
        ("user: 2.50", "`user` of a step is 2.5, a text is needed; put it in quotes"),
        ("user: [a]", "`user` of a step is a list, a text is needed"),
        ("bot: true", "`bot` of a step is true, a text is needed"),
        ("action:", "`action` of a step is null, a text is needed"),
        ("", "a step is null, a mapping is needed"),
    ],
)
def test_a_step_that_says_no_text_is_named_in_the_words_of_its_file(
    tmp_path: Path, step: str, reason: str
) -> None:
    good = "  - story: good\n    steps: [{user: '5', intent: greet}, {bot: hi}]\n"
    story = f"  - story: bad\n    steps:\n    - user: hello\n    - {step}\n    - bot: hi\n"
    (tmp_path / "x.yml").write_text(f"stories:\n{good}{story}")
    found = import_dialogues("rasa", tmp_path, tmp_path / "out")
    assert [item.reason.startswith(reason) for item in found.skipped] == [True]


def test_a_number_that_a_user_types_stays_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("stories:\n- story: a\n  steps: [{user: 1234}, {bot: thanks}]\n")
    found = import_dialogues("rasa", tmp_path, tmp_path / "out")
    assert converted(tmp_path / "out", found)["rasa_a"].turns[0].user == ["1234"]


@pytest.mark.parametrize("kind", ["sgd", "crosswoz", "rasa", "tau2"])
def test_a_pipe_is_refused(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe or a device; a file is needed"):
        import_dialogues(kind, tmp_path / "pipe", tmp_path / "out")


def test_the_command_says_what_was_left_out(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["import", "rasa", str(RASA), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and "rasa: 3 of 5 dialogues converted" in done.output
    assert "skipped 1: a step with `or`" in done.output
    again = CliRunner().invoke(cli, ["import", "rasa", str(RASA), "--out", str(tmp_path / "new"), "--json"])
    assert json.loads(again.stdout)["found"] == 5
