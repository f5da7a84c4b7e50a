"""`evalkit rescore`: the numbers again from the evidence, never from a run that was edited."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.metrics import evaluate
from evalkit.runs.derive import derive
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.rescore import rescore
from evalkit.runs.verify import verify
from tests.evalkit.fake_run import RULES, policy, random_evidence, write_run


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that was scored before there were latency metrics."""
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_FAMILIES", evaluate._FAMILIES[:1])
        return write_run(tmp_path / "old", RULES, random_evidence(1), random_evidence(1, worse=0.1))


def test_an_intact_run_keeps_every_byte(run: RunFolder) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    outcome = rescore(run)
    assert outcome.verdict is not None
    assert {path: path.read_bytes() for path in before} == before
    assert set(outcome.reports) == {"html", "markdown", "junit"}
    assert verify(run) == []


def test_new_metrics_are_computed_sealed_and_judged(old_run: RunFolder) -> None:
    before = {metric.name for metric in rescore_names(old_run)}
    assert verify(old_run) != []
    outcome = rescore(old_run)
    assert {metric.name for metric in outcome.results.metrics} > before
    assert verify(old_run) == []


def rescore_names(folder: RunFolder) -> tuple[evaluate.MetricResult, ...]:
    from evalkit.runs.results_io import read_results

    return read_results(folder.results).metrics


def test_a_rescore_that_was_killed_before_the_seal_is_finished(old_run: RunFolder) -> None:
    old_run.results.write_bytes(derive(old_run).files()["results.json"])
    rescore(old_run)
    assert verify(old_run) == []


def test_every_stored_verdict_is_judged_again_and_the_latest_stays_the_latest(old_run: RunFolder) -> None:
    other = policy([{"metric": "perplexity/token", "max": 1000.0}])
    store_verdict(old_run, judge_run(old_run, other))
    outcome = rescore(old_run)
    assert outcome.verdict is not None and len(outcome.verdict.rules) == 1
    assert len(list(old_run.verdicts.iterdir())) == 2
    assert verify(old_run) == []


def edit(name: str) -> Callable[[RunFolder], None]:
    def change(folder: RunFolder) -> None:
        path = folder.path / name
        path.write_bytes(path.read_bytes().replace(b"1", b"2", 1) + b" ")

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("results.json", edit("results.json")),
        ("comparison.json", edit("comparison.json")),
        ("plan.json", edit("plan.json")),
        ("seal.json", edit("seal.json")),
        ("evidence/candidate/samples.parquet", edit("evidence/candidate/samples.parquet")),
        ("evidence/baseline/turns.parquet", lambda run: run.turns("baseline").unlink()),
        ("notes.txt", lambda run: (run.path / "notes.txt").write_text("x")),
    ],
)
def test_a_broken_seal_is_refused_and_nothing_written(
    run: RunFolder, name: str, damage: Callable[[RunFolder], object]
) -> None:
    damage(run)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"seal is broken|plan\.json|damaged"):
        rescore(run)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_unfinished_run_is_sent_to_resume(run: RunFolder) -> None:
    run.seal.unlink()
    with pytest.raises(InputError, match="evalkit resume"):
        rescore(run)


def test_a_run_without_a_gate_has_no_verdict(run: RunFolder, tmp_path: Path) -> None:
    shutil.rmtree(run.verdicts)
    run.verdict.unlink()
    assert rescore(run).verdict is None
