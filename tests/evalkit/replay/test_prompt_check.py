"""A server's prompts are counted again from the transcript: dropped turns, template and generated ids included."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.errors import InputError
from evalkit.replay.client import SandboxClient, TurnReply
from evalkit.replay.prompt_check import PromptCheck
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.records import TurnRecord
from evalkit.runs.setup import prepare
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.loader import load_scenario
from tests.sandbox.fixtures import INTENTS
from tests.sandbox.processes import SandboxProcess
from tests.support.dialogues import turn

REPLY = TurnReply("x", (1,), "END", None, None, None, 0, 0, 1, 0, "OPEN", 0, 0, 0)


def replay(server: SandboxProcess, bundle: Path, talks: list[Dialogue], tokens: int) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    settings = ReplaySettings(5, 2, ("typos",), max_new_tokens=tokens, concurrency=4)
    with SandboxClient(server.ready["address"]) as client:
        prompts = PromptCheck(load_bundle(bundle).tokenizer)
        run_dialogues(talks, settings, client, records.extend, prompts=prompts)
    return sorted(records, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))


def test_a_server_without_a_fault_is_counted_right_to_the_token(
    flow_server: SandboxProcess, tiny_bundle: Path
) -> None:
    texts = [INTENTS[name][0] for name in ("card_lost", "balance", "card_lost", "contact_human")]
    turns = [{"user": text, "gold": "x"} for text in texts]
    talks = [Dialogue.model_validate({"id": f"d{number}", "turns": turns}) for number in range(4)]
    records = replay(flow_server, tiny_bundle, talks, 8)
    told = [record for record in records if record.finish_reason not in (None, "HANDED_OVER")]
    assert len(told) > 8
    for record in told:
        check = record.expectations[0]
        assert check.kind == "prompt_tokens" and check.passed and check.want == record.prompt_tokens


def test_dropped_turns_are_left_out_as_the_server_reports_them(
    flow_server: SandboxProcess, tiny_bundle: Path
) -> None:
    said = [f"{number}: what is my balance, my account, my card and my name, please?" for number in range(9)]
    long = Dialogue.model_validate({"id": "long", "turns": [{"user": text, "gold": "x"} for text in said]})
    records = replay(flow_server, tiny_bundle, [long], 24)
    checks = [item for record in records for item in record.expectations if item.kind == "prompt_tokens"]
    assert any("no longer fit" in (record.reason or "") for record in records)
    assert len(checks) > 5 and all(check.passed for check in checks)


@pytest.mark.parametrize(
    ("told", "dropped", "passed"), [(0, 0, True), (2, 0, False), (None, 0, False), (0, 1, False)]
)
def test_another_count_or_none_fails(tiny_bundle: Path, told: int | None, dropped: int, passed: bool) -> None:
    tokenizer = load_bundle(tiny_bundle).tokenizer
    before = [turn(user_text="hello", token_ids=[7, 8, 9])]
    (known,) = PromptCheck(tokenizer).check(before, "my card", REPLY)
    assert known.want > 6 and known.got == 0 and not known.passed
    prompt_tokens = None if told is None else known.want + told
    reply = replace(REPLY, prompt_tokens=prompt_tokens, dropped_turns=dropped)
    (check,) = PromptCheck(tokenizer).check(before, "my card", reply)
    assert (check.got, check.passed) == (prompt_tokens, passed)


def test_what_the_flow_answers_has_no_prompt(tiny_bundle: Path) -> None:
    reply = replace(REPLY, finish_reason="HANDED_OVER")
    assert PromptCheck(load_bundle(tiny_bundle).tokenizer).check([], "a human!", reply) == []


@pytest.mark.parametrize("side", ["candidate", "baseline"])
def test_a_bundle_without_a_chat_template_is_refused_before_a_run_begins(
    tiny_bundle: Path, tmp_path: Path, side: str
) -> None:
    bundle = load_bundle(tiny_bundle)
    tokenizer = bundle.manifest.tokenizer.model_copy(update={"chat_template": None})
    silent = replace(bundle, manifest=bundle.manifest.model_copy(update={"tokenizer": tokenizer}))
    (tmp_path / "d.yaml").write_text("id: d\nturns: [{user: hi, gold: hello}]\n")
    path = tmp_path / "s.yaml"
    path.write_text("version: 1\nname: s\ndialogues: {include: [d.yaml]}\n")
    candidate, baseline = (silent, None) if side == "candidate" else (bundle, silent)
    with pytest.raises(InputError, match=r"s.yaml:3: dialogues: the bundle of tiny has no chat template"):
        prepare(load_scenario(path), candidate, baseline)
    prepare(load_scenario(path), bundle, bundle)
