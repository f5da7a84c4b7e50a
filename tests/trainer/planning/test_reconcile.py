"""A plan beside measured peaks and MindSpore's dry run."""

import pytest

from evalkit.errors import InputError
from tests.trainer.planning.public_runs import QWEN_7B, training_qwen_7b
from trainer.planning.memory import plan_training
from trainer.planning.reconcile import dry_run_total_mib, read_dry_run, reconcile
from trainer.planning.settings import DeviceMemory, Measured

LOG = """\
[INFO] something
Device MOC memory size: 65536M
MindSpore Used memory size: 59392M
MindSpore memory base address: 0xffffe9dc1407
Used peak memory usage (without fragments): {used}M
Actual peak memory usage (with fragments): {actual}M
"""


@pytest.fixture
def stages():
    return plan_training(QWEN_7B, training_qwen_7b("none"), DeviceMemory())


def test_the_residual_of_each_term(stages):
    states = {"parameters": 3632.0, "optimizer": 21800.0}
    rows = reconcile(
        stages, (Measured(peak_mib=55405, terms_mib=states), Measured(peak_mib=57400, kind="actual"))
    )
    total, *terms = [row for row in rows if row.kind == "used"]
    assert total.term == "total" and total.residual_mib == pytest.approx(
        55405 - sum(t.predicted_mib for t in terms)
    )
    by_name = {row.term: row for row in terms}
    assert by_name["optimizer"].residual_mib == pytest.approx(21800 - by_name["optimizer"].predicted_mib)
    # What nobody measured stays unknown: it isn't zero and isn't shared out.
    assert by_name["activations"].measured_mib is None and by_name["activations"].residual_mib is None
    assert "fragmentation" not in by_name and any(
        r.term == "fragmentation" for r in rows if r.kind == "actual"
    )


def test_a_stage_or_term_that_is_not_there_is_named(stages):
    with pytest.raises(InputError, match="stage 2: the plan has stages 0 to 1"):
        reconcile(stages, (Measured(peak_mib=1, stage=2),))
    with pytest.raises(InputError, match="kv_cache: not a term"):
        reconcile(stages, (Measured(peak_mib=1, terms_mib={"kv_cache": 1.0}),))


def test_a_dry_run_takes_the_pools_place(tmp_path, stages):
    """What it can't know is added: operator workspace (its kernels never run) and HCCL's buffers beside the pool."""
    (tmp_path / "rank0.log").write_text(LOG.format(used=55389, actual=57341))
    run = read_dry_run(tmp_path / "rank0.log")
    assert (run.used_mib, run.actual_mib, run.device_mib, run.doubt) == (55389, 57341, 65536, None)
    assert dry_run_total_mib(run, stages[0], DeviceMemory()) == 57341 + 128 + 2 * 200 * 3


def test_a_dry_run_with_an_impossible_peak_falls_back_on_the_factor(tmp_path, stages):
    (tmp_path / "rank0.log").write_text(LOG.format(used=55389, actual=55341))
    run = read_dry_run(tmp_path / "rank0.log")
    assert run.actual_mib is None and "55341" in run.doubt
    assert dry_run_total_mib(run, stages[0], DeviceMemory()) == pytest.approx(55389 * 1.04 + 128 + 1200)


def test_a_log_without_a_peak_says_how_to_get_one(tmp_path):
    (tmp_path / "rank0.log").write_text("nothing\n")
    with pytest.raises(InputError, match="MS_MEMORY_STATISTIC=1"):
        read_dry_run(tmp_path / "rank0.log")
