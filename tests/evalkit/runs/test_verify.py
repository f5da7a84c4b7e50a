"""Whatever is edited, lost or added in a finished run is named."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalkit.canonical import canonical_json, sha256_json
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic
from evalkit.gate.policy import policy_digest
from evalkit.report import write_reports
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.seal import read_seal, sealed_names, write_seal
from evalkit.runs.verify import verify
from tests.evalkit.fake_run import RULES, policy, random_evidence, write_run

SEALED = [
    "comparison.json",
    "evidence/baseline/samples.parquet",
    "evidence/baseline/turns.parquet",
    "evidence/candidate/samples.parquet",
    "evidence/candidate/turns.parquet",
    "plan.json",
    "results.baseline.json",
    "results.json",
]


def named(run: RunFolder) -> set[str]:
    return {difference.path for difference in verify(run)}


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_a_fresh_run_has_no_difference(run: RunFolder) -> None:
    assert verify(run) == []
    assert sealed_names(run.path) == SEALED


def test_reports_may_come_go_and_change(run: RunFolder) -> None:
    write_reports(run, ("html", "markdown", "junit"))
    (run.reports / "report.html").write_bytes(b"\x00edited")
    (run.reports / "notes").mkdir()
    assert verify(run) == []


def test_judging_again_under_another_policy_is_no_difference(run: RunFolder) -> None:
    other = policy([{"metric": "perplexity/token", "max": 100}], confidence=0.9)
    store_verdict(run, judge_run(run, other))
    assert len(list(run.verdicts.iterdir())) == 2
    assert json.loads(run.verdict.read_bytes())["policy_sha256"] == policy_digest(other)
    assert verify(run) == []


def test_one_flipped_byte_anywhere_is_named(run: RunFolder) -> None:
    """200 random positions over all files outside reports/, each with a random bit."""
    generator = random.Random(20)
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    for number in range(200):
        # Every file gets its share, however short it is.
        path = files[number % len(files)]
        before = path.read_bytes()
        flip(path, generator.randrange(len(before)), generator.randrange(8))
        assert path.relative_to(run.path).as_posix() in named(run), f"{path} flip {number}"
        path.write_bytes(before)
    assert verify(run) == []


@pytest.mark.parametrize("name", [*SEALED, "seal.json", "verdict.json"])
def test_a_missing_file_is_named(run: RunFolder, name: str) -> None:
    (run.path / name).unlink()
    assert name in named(run)


def test_a_missing_verdict_of_the_runs_policy_is_named(run: RunFolder) -> None:
    (kept,) = run.verdicts.iterdir()
    kept.unlink()
    assert named(run) == {f"verdicts/{kept.name}"}


def test_all_verdicts_missing_are_named(run: RunFolder) -> None:
    (kept,) = run.verdicts.iterdir()
    kept.unlink()
    run.verdict.unlink()
    assert named(run) == {"verdict.json", f"verdicts/{kept.name}"}


@pytest.mark.parametrize("name", [*SEALED, "seal.json", "verdict.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{}", b"[1]"])
def test_a_file_that_cannot_be_parsed_is_named(run: RunFolder, name: str, content: bytes) -> None:
    (run.path / name).write_bytes(content)
    assert name in named(run)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "evidence/candidate/samples.journal.jsonl",
        "evidence/candidate/tokens.parquet",
        "evidence/third/samples.parquet",
        "verdicts/other.json",
        "verdicts/" + "0" * 64 + ".json",
        ".hidden",
        "sub/plan.json",
    ],
)
def test_an_extra_file_is_named(run: RunFolder, name: str) -> None:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}", encoding="utf-8")
    assert name in named(run)


def test_an_extra_empty_folder_is_named(run: RunFolder) -> None:
    (run.path / "empty").mkdir()
    assert named(run) == {"empty"}


def test_links_and_pipes_are_named(run: RunFolder) -> None:
    target = run.path.parent / "elsewhere.json"
    run.results.rename(target)
    run.results.symlink_to(target)
    os.mkfifo(run.path / "pipe")
    assert named(run) >= {"results.json", "pipe"}
    with pytest.raises(InputError, match="not a regular file"):
        write_seal(run.path)


def test_a_verdict_under_another_name_is_named(run: RunFolder) -> None:
    (kept,) = run.verdicts.iterdir()
    kept.rename(run.verdicts / ("1" * 64 + ".json"))
    assert named(run) == {f"verdicts/{kept.name}", "verdicts/" + "1" * 64 + ".json"}


def reseal(run: RunFolder) -> None:
    write_seal(run.path)


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None], canonical: bool = False) -> None:
    content = json.loads(path.read_bytes())
    edit(content)
    text = (
        canonical_json(content)
        if canonical
        else (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    )
    write_bytes_atomic(path, text)


@pytest.mark.parametrize("name", ["results.json", "results.baseline.json", "comparison.json"])
def test_a_number_edited_and_sealed_again_is_found_by_recomputing(run: RunFolder, name: str) -> None:
    def better(content: dict[str, Any]) -> None:
        entry = content["metrics"][0]
        field = "candidate" if name == "comparison.json" else "value"
        entry[field] *= 0.9

    edit_json(run.path / name, better)
    reseal(run)
    assert named(run) == {name}


def test_a_verdict_turned_to_pass_is_found(run: RunFolder) -> None:
    edit_json(run.verdict, lambda content: content.update(verdict="PASS"), canonical=True)
    assert named(run) == {"verdict.json"}


def test_a_threshold_edited_in_the_verdict_is_found(run: RunFolder) -> None:
    def lax(content: dict[str, Any]) -> None:
        content["policy"]["rules"][4]["min"] = 0.01

    edit_json(run.verdict, lax, canonical=True)
    assert "verdict.json" in named(run)


def test_evidence_edited_and_sealed_again_is_found(run: RunFolder) -> None:
    other = write_run(
        run.path.parent / "other",
        RULES,
        random_evidence(2, texts=6, dialogues=2),
        random_evidence(1, texts=6, dialogues=2),
    )
    run.samples("candidate").write_bytes(other.samples("candidate").read_bytes())
    reseal(run)
    assert {"results.json", "comparison.json", "verdict.json"} <= named(run)


def test_damaged_evidence_that_was_sealed_again_is_a_difference_not_a_crash(run: RunFolder) -> None:
    run.turns("candidate").write_bytes(b"PAR1 no parquet PAR1")
    reseal(run)
    assert any(path.startswith("evidence") for path in named(run))


def test_a_nonsense_plan_that_was_sealed_again_is_a_difference(run: RunFolder) -> None:
    edit_json(run.plan, lambda content: content.update(candidate=None))
    reseal(run)
    assert named(run)


def test_a_baseline_that_the_plan_does_not_know_is_extra(run: RunFolder) -> None:
    edit_json(run.plan, lambda content: content.update(baseline=None))
    reseal(run)
    assert {"results.baseline.json", "comparison.json"} <= named(run)


def test_the_seal_fits_itself(run: RunFolder) -> None:
    content = json.loads(run.seal.read_bytes())
    assert content["seal_sha256"] == sha256_json(
        {key: value for key, value in content.items() if key != "seal_sha256"}
    )
    assert list(read_seal(run.path)) == SEALED
    assert run.seal.read_bytes() == canonical_json(content)


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["files"].pop("results.json"),
        lambda content: content["files"]["results.json"].update(sha256="0" * 64),
        lambda content: content["files"]["results.json"].update(bytes=1),
        lambda content: content.update(seal_sha256="0" * 64),
        lambda content: content.update(files=[]),
        lambda content: content.update(extra=1),
    ],
)
def test_an_edited_seal_is_named(run: RunFolder, edit: Callable[[dict[str, Any]], None]) -> None:
    edit_json(run.seal, edit, canonical=True)
    assert named(run) == {"seal.json"}


def test_a_seal_with_other_white_space_is_named(run: RunFolder) -> None:
    run.seal.write_bytes(run.seal.read_bytes() + b"\n")
    assert named(run) == {"seal.json"}


def test_sealing_twice_gives_equal_bytes(run: RunFolder) -> None:
    before = run.seal.read_bytes()
    write_seal(run.path)
    assert run.seal.read_bytes() == before


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        verify(RunFolder(tmp_path / "nothing"))


def test_another_folder_is_an_input_error_and_a_gutted_run_a_difference(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"isn't a run \(no plan\.json"):
        verify(RunFolder(run.path.parent))
    run.plan.unlink()
    run.seal.unlink()
    assert {"plan.json", "seal.json"} <= named(run)


def test_a_run_without_baseline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "alone", RULES, random_evidence(3, texts=6, dialogues=2), None)
    assert verify(run) == []
    assert not run.comparison.exists()


def test_differences_read_as_one_line() -> None:
    from evalkit.runs.verify import FileDifference

    assert str(FileDifference("plan.json", "missing")) == "plan.json: missing"
