"""The memory plan against public readings: 64 V100 logs, MindSpore on 910, the A100 sweep."""

import csv

import numpy as np
import pytest

from tests.trainer.planning.public_runs import GPT_52B, QWEN_7B, logged_memory, training_52b, training_qwen_7b
from trainer.planning.accuracy import MEMORY, POOL
from trainer.planning.calibration import fit_memory
from trainer.planning.memory import plan_training
from trainer.planning.reconcile import check_reading
from trainer.planning.settings import DeviceMemory

BARE = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)


@pytest.fixture(scope="module")
def anchors(traces):
    with (traces / "memory_anchors" / "anchors.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_allocation_without_zero_is_exact_on_every_stage(traces):
    """20 bytes a parameter; two receive buffers of 2sbh = 64 MiB on every stage but the first."""
    logged = logged_memory(traces, "meg_ds_3d_gpt2_perf_n16-ds-off.out")
    stages = plan_training(GPT_52B, training_52b(gradient_type="fp32_accumulation"), BARE)
    states = ("parameters", "gradients", "optimizer", "receive_buffers")
    assert sorted(logged) == list(range(16))
    for stage in stages:
        predicted = sum(stage.phases["backward"].get(term, 0.0) for term in states)
        assert predicted == pytest.approx(logged[stage.stage][0], abs=0.004), stage.stage
    assert logged[0][0] == pytest.approx(17504.844, abs=0.004)


def test_the_peak_falls_by_272_mib_a_stage_down_to_the_optimizers_floor(traces):
    """Four layers of 64 MiB and a mask of 16 MiB a micro-batch in flight; from stage 9 the step's gradient copy rules."""
    logged = logged_memory(traces, "meg_ds_3d_gpt2_perf_n16-ds-on.out")
    stages = plan_training(GPT_52B, training_52b(step_copy_bytes=4), BARE)
    backward = [sum(stage.phases["backward"].values()) for stage in stages]
    for stage in range(1, 8):
        assert backward[stage] - backward[stage + 1] == pytest.approx(272.0)
        assert logged[stage][1] - logged[stage + 1][1] == pytest.approx(272.0, abs=0.01)
        assert stages[stage].total_mib == pytest.approx(logged[stage][1], rel=0.015)
    for stage in range(9, 15):
        assert stages[stage].peak_phase == "step"
        assert stages[stage].total_mib == pytest.approx(logged[stage][1], rel=0.004)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_mindspore_readings_of_qwen_7b(anchors, recompute):
    """Real runs and dry runs on 910 64 GB, used peak and peak with fragments; the misprinted row isn't a reading."""
    stage = plan_training(QWEN_7B, training_qwen_7b(recompute), DeviceMemory())[0]
    kind = "norecompute" if recompute == "none" else "recompute_full"
    rows = [row for row in anchors if row["id"] in (f"qwen7b_real_{kind}", f"qwen7b_dryrun_{kind}")]
    assert len(rows) == 4
    for row in rows:
        predicted = stage.pool_mib(fragments="actual" in row["measured_item"])
        error = predicted / float(row["measured_MiB"]) - 1
        assert abs(error) <= 0.03, (row["id"], row["measured_item"], error)
    used = [row for row in rows if row["measured_item"].startswith("used")]
    errors = [stage.pool_mib(fragments=False) / float(row["measured_MiB"]) - 1 for row in used]
    assert max(map(abs, errors)) <= POOL.relative_error


def test_the_misprinted_reading_is_noticed(anchors):
    """A peak with fragments below the one without: exactly one published row."""
    used = next(
        row for row in anchors if row["id"] == "qwen7b_dryrun_norecompute" and "used" in row["measured_item"]
    )
    log = next(row for row in anchors if row["id"] == "qwen7b_dryrun_norecompute_log")
    reading = check_reading(int(used["measured_MiB"]), int(log["measured_MiB"]))
    assert reading.actual_mib is None and "below" in reading.doubt
    assert check_reading(55405, 57400).doubt is None


def test_the_readings_of_llama_175b_are_additive_in_layers_and_recomputation(anchors):
    """How its matrices are cut isn't published, so that only the form can be tested.

    stage = layers · states + micro-batches in flight · (layers · activations - what recomputation saves): four unknowns,
    six middle stages. First and last have one more unknown each (embedding, head), which leaves nothing to test.
    """
    offset, select = [-1, 1] * 8, [1, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 2, 0, 0, 1]
    communication = [1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 1, 1, 2, 0, 0, 1]
    stages = [6, 9, 10, 11, 12, 13]
    measured = np.array(
        [
            float(row["measured_MiB"])
            for stage in stages
            for row in anchors
            if row["id"] == f"llama175b_stage{stage}"
        ]
    )
    rows = []
    for stage in stages:
        layers, in_flight = 6 + offset[stage], 16 - stage
        rows.append(
            [layers, in_flight * layers, -in_flight * select[stage], -in_flight * communication[stage]]
        )
    amounts = np.array(rows, dtype=float)
    found, _, rank, _ = np.linalg.lstsq(amounts, measured, rcond=None)
    assert rank == 4 and (found > 0).all()
    assert abs(amounts @ found / measured - 1).max() <= 0.01
    states, activations, *_ = found
    head = float(next(row["measured_MiB"] for row in anchors if row["id"] == "llama175b_stage0"))
    first = 5 * states + 16 * 5 * activations - 16 * (found[2] + found[3])
    assert 0 < head - first < 0.2 * head  # the embedding's states


def test_memory_of_the_sweep(sweep):
    """One constant a gradient type; every out-of-memory row but at most one found, no false alarm at 80 GB."""
    fit = fit_memory(sweep, limit_gib=80)
    assert (fit.rows, fit.out_of_memory_rows) == (MEMORY.rows, 4)
    assert fit.mean_error <= 0.06 and fit.mean_error_left_out <= 0.06
    assert fit.mean_error == pytest.approx(MEMORY.relative_error, abs=0.005)
    assert len(fit.missed) <= 1 and fit.false_alarms == ()
    assert 10 < fit.constant_gib["fp16"] < 18
