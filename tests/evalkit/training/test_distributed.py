"""Several ranks, one result."""

import json
import threading
import time
from dataclasses import replace

import pytest

from evalkit.errors import InputError
from evalkit.training.distributed import MissingRankError, Ranks
from tests.evalkit.training.fixtures import small_validation
from tests.evalkit.training.msrun import launch
from tests.evalkit.training.table import TableBackend


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


def measure(check, folder, size, *, steps=(1,), seeds=None, absent=(), timeout_s=20.0):
    """What each rank measured, or the error that it raised."""
    found, backends = (
        {},
        [TableBackend(check.tokenizer.vocab_size, 128, seed=(seeds or [0] * size)[r]) for r in range(size)],
    )

    def work(rank: int) -> None:
        ranks = Ranks(rank, size, folder, "run", timeout_s)
        try:
            found[rank] = [ranks.measure(check, backends[rank], step) for step in steps]
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, backends


def same(measurement):
    """Everything but times."""
    samples = [replace(sample, elapsed_ns=0) for sample in measurement.evidence.samples]
    return samples, measurement.metrics


@pytest.mark.parametrize("size", [2, 3, 5])
def test_results_are_bit_identical_for_any_number_of_ranks(check, tmp_path, size):
    (alone,) = measure(check, tmp_path / "one", 1)[0][0]
    found, backends = measure(check, tmp_path / "many", size)
    for rank in range(size):
        assert same(found[rank][0]) == same(alone)
    whole = TableBackend(check.tokenizer.vocab_size, 128)
    check.measure(whole)
    assert sum(backend.calls for backend in backends) == whole.calls  # each batch once, over all ranks


def test_files_of_earlier_evaluations_go(check, tmp_path):
    found, _ = measure(check, tmp_path, 2, steps=(1, 2, 3))
    assert same(found[0][0]) == same(found[1][2])
    left = sorted(path.parent.name for path in tmp_path.rglob("*.json"))
    assert left == ["step-3-part-0", "step-3-part-0"]
    Ranks(0, 2, tmp_path, "run").close()
    assert not list(tmp_path.iterdir())


def test_a_missing_rank_is_an_error_in_time(check, tmp_path, monkeypatch):
    """The two that are there begin to wait when both have written their parts."""
    both, wait = threading.Barrier(2), Ranks._check_weights

    def wait_together(ranks, place):
        both.wait(60)
        wait(ranks, place)

    monkeypatch.setattr(Ranks, "_check_weights", wait_together)
    found, _ = measure(check, tmp_path, 3, absent=(1,), timeout_s=0.5)
    for rank in (0, 2):
        assert isinstance(found[rank], MissingRankError)
        assert "rank 1 of 3 gave no result within 0.5 s" in str(found[rank])


def test_other_weights_are_refused(check, tmp_path):
    found, _ = measure(check, tmp_path, 2, seeds=[0, 1])
    for error in found.values():
        assert isinstance(error, InputError) and "rank 1 holds other weights" in str(error)


@pytest.mark.parametrize(
    "settings", [{"rank": 2, "size": 2}, {"rank": -1, "size": 1}, {"rank": 0, "size": 1, "timeout_s": 0}]
)
def test_wrong_numbers_are_refused(settings, tmp_path):
    with pytest.raises(InputError, match="needed"):
        Ranks(folder=tmp_path, run="x", **settings)


def test_without_communication_the_ranks_are_not_known(tmp_path, monkeypatch):
    assert (Ranks.of_mindspore(tmp_path).rank, Ranks.of_mindspore(tmp_path).size) == (0, 1)
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    with pytest.raises(InputError, match=r"communication\.init"):
        Ranks.of_mindspore(tmp_path)


def test_the_shared_folder_is_a_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"folder: the path of a folder is needed \(got 7\)"):
        Ranks.of_mindspore(7)
    with pytest.raises(InputError, match=r"folder: .*file: a folder is needed, this is a file"):
        Ranks.of_mindspore(tmp_path / "file")


@pytest.mark.slow
def test_msrun_with_one_two_and_three_processes(tmp_path):
    results = []
    for count in (1, 2, 3):
        done = launch(tmp_path, count)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        found = sorted((tmp_path / f"ranks-{count}").glob("result-*.json"))
        assert len(found) == count
        results += [path.read_bytes() for path in found]
    assert len(set(results)) == 1


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_in_time(tmp_path):
    began = time.monotonic()
    done = launch(tmp_path, 2, kill=1, timeout_s=20)
    assert done.returncode != 0 and time.monotonic() - began < 120
    assert not list((tmp_path / "ranks-2").glob("result-*.json"))
    # msrun may end the other rank before it has waited for long; if not, its own error names the one that is gone.
    error = tmp_path / "ranks-2" / "error-0.txt"
    assert not error.exists() or "rank 1 of 2 gave no result within 20 s" in error.read_text()


@pytest.mark.slow
def test_msrun_with_drift_and_robustness(tmp_path):
    """Each of two processes sees half of every batch: their records are equal, and those of one that sees all of it."""
    found = []
    for count in (1, 2):
        done = launch(tmp_path, count, "drift_ranks_script.py")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        files = sorted((tmp_path / f"ranks-{count}").glob("records-*.json"))
        assert len(files) == count
        found += [json.loads(path.read_text()) for path in files]
    alone, first, second = found
    assert first == second == alone
    assert [record["step"] for record in alone] == [6, 12, 16]
    for record in alone:
        assert record["error"] is None and record["problems"] == [] and record["drift"]["problem"] is None
        values = {(metric["name"], metric["slice"]): metric["value"] for metric in record["metrics"]}
        assert values["robustness/typos/perplexity/token", None] > 0
        assert values["perplexity/token", "resampled"] not in (None, values["perplexity/token", None])
    # The window is the last 60 texts of both ranks: 4 a step.
    assert [record["drift"]["target_texts"] for record in alone] == [24, 48, 60]
    # Rank 0's half of the batches alone would have given other weights.
    assert len({record["effective_sample_size"] for record in alone}) == 3
    half = json.loads((tmp_path / "ranks-2" / "half-0.json").read_text())
    assert half != alone[-1]["effective_sample_size"]
