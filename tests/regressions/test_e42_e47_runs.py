"""Public faults of caches, resume and partial runs: E42-E47 of reference/evaluation.md."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.metrics import evaluate
from evalkit.runs.folder import RunFolder
from evalkit.runs.rescore import rescore
from evalkit.runs.results_io import read_results
from evalkit.runs.resume import resume_run
from tests.evalkit.fake_run import RULES, random_evidence, write_run
from tests.support.bundles import reseal
from tests.support.interrupted import (
    Interrupted,
    assert_equal_runs,
    journal,
    run,
    torn_copy,
)


def refusal(folder: RunFolder) -> str:
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        resume_run(folder, SilentProgress())
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    return str(caught.value)


def test_e42_another_model_under_the_same_name_never_gets_the_first_ones_scores(
    begun: Interrupted,
) -> None:
    """lm-eval #4063: results were reused by name. Here the run is refused, and what differs is named."""
    bundle, folder = begun.bundle, begun.journals
    tokenizer = bundle / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    reseal(bundle, "tokenizer.json")
    message = refusal(folder)
    assert "candidate.model_digest was" in message


def test_e43_a_metric_that_came_later_is_computed_from_the_kept_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """evalscope #767: a metric added after caching was never computed."""
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_FAMILIES", evaluate._FAMILIES[:1])
        folder = write_run(tmp_path / "run", RULES[:1], random_evidence(1), None)
    before = {metric.name for metric in read_results(folder.results).metrics}
    assert "logits/entropy" not in before
    after = {metric.name: metric for metric in rescore(folder).results.metrics}
    assert after["logits/entropy"].value is not None


def test_e44_a_crash_at_99_percent_loses_at_most_the_batch_in_flight(
    begun: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval #2533: everything was written at the end. Here nothing is scored again but the lost tail."""
    scenario, bundle, folder = begun.scenario, begun.bundle, begun.journals
    samples = journal(folder, "samples")
    whole = samples.read_bytes()
    samples.write_bytes(whole[: int(0.99 * len(whole))])
    journal(folder, "turns").unlink()
    from evalkit.backends.mindir import MindirBackend

    calls: list[int] = []
    original = MindirBackend.score

    def counting(self: MindirBackend, *arrays: object) -> object:
        calls.append(1)
        return original(self, *arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(MindirBackend, "score", counting)
    resume_run(folder, SilentProgress())
    resumed = len(calls)
    assert_equal_runs(folder, begun.reference)
    run(scenario, bundle, tmp_path / "whole", begun.sandbox, use_cache=False)
    assert 0 < resumed < (len(calls) - resumed) / 3


def test_e45_an_opened_file_is_no_finished_one_and_nothing_is_recorded_twice(
    begun: Interrupted, tmp_path: Path
) -> None:
    """ClawBench #297: files that were opened at the start counted as done; others appended duplicates."""
    folder = begun.journals
    samples = journal(folder, "samples")
    lines = samples.read_bytes()
    # Recorded twice, as by two attempts: the last record of an id counts, once.
    samples.write_bytes(lines + lines)
    shutil.copytree(folder.path, tmp_path / "empty")
    resume_run(folder, SilentProgress())
    assert_equal_runs(folder, begun.reference)
    empty = RunFolder(tmp_path / "empty")
    for name in ("samples", "turns", "tokens"):
        journal(empty, name).write_bytes(b"")
    resume_run(empty, SilentProgress())
    assert_equal_runs(empty, begun.reference)


def test_e45_a_trial_that_the_machinery_spoilt_is_played_again(begun: Interrupted) -> None:
    """tlaps-bench PR #60: failed results were reused for ever."""
    folder = begun.journals
    turns = journal(folder, "turns")
    spoilt = [json.loads(line) for line in turns.read_text().splitlines()]
    for line in spoilt:
        if line["dialogue_id"] == "d1":
            line.update(status="infrastructure_fault", reason="UNAVAILABLE: gone", text="")
    turns.write_text("".join(json.dumps(line) + "\n" for line in spoilt))
    resume_run(folder, SilentProgress())
    assert_equal_runs(folder, begun.reference)


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("data.text was", lambda s: _append(s.with_name("texts.jsonl"), '{"id": "new", "text": "x"}\n')),
        ("data.risk was", lambda s: _append(s.with_name("applications.jsonl"), "\n")),
        ("data.dialogues.talk.yaml was", lambda s: _append(s.with_name("talk.yaml"), "# more\n")),
        ("scenario.seed was 2024, is 7", lambda s: _append(s, "seed: 7\n")),
        (
            "scenario.gate.confidence was 0.95, is 0.9",
            lambda s: _replace(s, "gate: {", "gate: {confidence: 0.9, "),
        ),
        ("scenario.text.window.stride was 32, is 16", lambda s: _replace(s, "stride: 32", "stride: 16")),
    ],
)
def test_e46_changed_data_seed_or_settings_refuse_the_old_samples(
    begun: Interrupted, named: str, change: Change
) -> None:
    """inspect #618: samples were reused after the shuffle seed or the data had changed."""
    change(begun.scenario)
    assert named in refusal(begun.journals)


def test_e46_changed_code_refuses_the_old_samples(
    begun: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalkit.runs.planning.code_digests", lambda: {"evalkit": "0" * 64, "sandbox": None})
    message = refusal(begun.journals)
    assert "code.evalkit was" in message and "code.sandbox was" in message


def test_e46_the_order_of_the_data_changes_no_record(begun: Interrupted, tmp_path: Path) -> None:
    """Ids are the user's, the plan is made of content digests: another order of the lines gives the same evidence."""
    scenario, bundle = begun.scenario, begun.bundle
    texts = scenario.with_name("texts.jsonl")
    lines = texts.read_text().splitlines(keepends=True)
    random.Random(3).shuffle(lines)
    texts.write_text("".join(lines))
    shuffled = run(scenario, bundle, tmp_path / "shuffled", begun.sandbox, use_cache=False)
    assert_equal_runs(shuffled, begun.reference)


def test_e47_there_is_no_limit_and_a_part_of_a_run_is_never_judged(
    begun: Interrupted, tmp_path: Path
) -> None:
    """lm-eval #2598: `--limit` took the first N and the result looked whole."""
    scenario, bundle, folder = begun.scenario, begun.bundle, begun.journals
    command = [sys.executable, "-m", "evalkit"]
    limited = subprocess.run(
        [*command, "run", str(scenario), "--model", str(bundle), "--limit", "5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert limited.returncode == 2 and "--limit" in limited.stderr
    part = torn_copy(folder, tmp_path / "part", random.Random(4))
    judged = subprocess.run([*command, "judge", str(part.path)], capture_output=True, text=True, check=False)
    assert judged.returncode == 2 and "incomplete" in judged.stderr
    assert not part.verdict.exists() and not part.results.exists()


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _replace(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))
