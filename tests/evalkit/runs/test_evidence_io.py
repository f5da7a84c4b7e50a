"""Evidence survives the way to Parquet and back exactly; the journal is on disk before the work goes on."""

import json
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence, write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.journal import Journal
from evalkit.runs.records import ClassSums, ExpectationResult, SampleRecord, TurnRecord

TEXT = SampleRecord(
    sample_id="t1",
    kind="text",
    digest="d" * 64,
    cluster="c",
    status="ok",
    tokens=3,
    scored=3,
    bytes=7,
    bytes_scored=7,
    words=2,
    nll=0.1 + 0.2,
    classes={"head": ClassSums(tokens=2, nll=0.1), "长": ClassSums(tokens=1, nll=0.2)},
    tags=["en", "费用"],
    worst=[(0, 3, -1.25)],
    text='quote " and 中文 \u2028',
)
DECISION = SampleRecord(
    sample_id="r1",
    kind="risk",
    digest="e" * 64,
    cluster="r1",
    status="ok",
    target="reject",
    label_logprobs=[-0.5, -1e-9],
    part="judged",
)
TURN = TurnRecord(
    dialogue_id="d",
    trial=1,
    turn_index=0,
    turn_id="x",
    dialogue_turns=2,
    status="ok",
    reason=None,
    user_text="hello",
    text="hi",
    token_ids=[5, 9],
    finish_reason="END",
    expectations=[
        ExpectationResult("contains", ["a"], "b", False),
        ExpectationResult("max_ms", 5.0, 4.5, True),
    ],
    probe_distance=[2],
    locale="en",
    tags=[],
    intent=None,
    intent_expected="greeting",
    handover=False,
    handover_expected=None,
    satisfaction=4.2,
    prompt_tokens=10,
    reused_tokens=None,
    generated_tokens=2,
    first_token_ns=10**15 + 1,
    turn_overhead_ns=5,
    total_ns=9,
)


def test_round_trip_is_exact_and_sorted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(samples=(TEXT, DECISION), turns=(TURN,)))
    assert read_evidence(folder, "candidate") == Evidence(samples=(DECISION, TEXT), turns=(TURN,))


def test_equal_evidence_gives_equal_bytes_in_any_order(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    write_evidence(first, "baseline", Evidence(samples=(TEXT, DECISION)))
    write_evidence(second, "baseline", Evidence(samples=(DECISION, TEXT)))
    assert first.samples("baseline").read_bytes() == second.samples("baseline").read_bytes()


def test_no_evidence_is_two_empty_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence())
    assert read_evidence(folder, "candidate") == Evidence()


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign"])
def test_damaged_evidence_is_named(tmp_path: Path, damage: str) -> None:
    folder = RunFolder(tmp_path)
    write_evidence(folder, "candidate", Evidence(samples=(TEXT,), turns=(TURN,)))
    path = folder.samples("candidate")
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(folder.turns("candidate").read_bytes())
    with pytest.raises(InputError, match=r"samples\.parquet"):
        read_evidence(folder, "candidate")


def test_journal_lines_are_whole_after_each_append(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "samples.journal.jsonl"
    with Journal(path) as journal:
        journal.append([TEXT, DECISION])
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        assert [line["sample_id"] for line in lines] == ["t1", "r1"]
        assert lines[0]["record"] == "sample"
        assert lines[0]["nll"] == TEXT.nll
        journal.append([TURN])
        assert json.loads(path.read_text().split("\n")[-2])["record"] == "turn"
