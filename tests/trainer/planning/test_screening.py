"""Screening: what is tried, what is dropped and why, how it is ranked, and what is written."""

import csv
import io
from itertools import pairwise

import pytest
import yaml
from pydantic import ValidationError

from evalkit.errors import InputError
from tests.trainer.planning.public_runs import GPT, QWEN_7B
from trainer.configuration.parallel import ParallelConfig
from trainer.planning.cluster import ClusterFile, ScreenFile, SearchSpace
from trainer.planning.screen_run import parallel_fields, table, training_fragment
from trainer.planning.screening import UNMEASURED_ERROR, screen, strategies
from trainer.planning.settings import Strategy
from trainer.planning.shapes import ModelShape
from trainer.planning.time_model import TimeModel

DEVICE = {"memory_gib": 64, "peak_tflops": 320}
LINKS = [
    {
        "level": "node",
        "devices": 8,
        "bandwidth": [{"size_mib": 1, "gb_s": 10}, {"size_mib": 64, "gb_s": 150}],
    },
    {"level": "cluster", "devices": 32, "bandwidth": [{"size_mib": 16, "gb_s": 20}], "latency_us": 20},
]
MODEL = TimeModel(efficiency=0.5, layer_micro_batch_ms=2.0, relative_error=0.05)


def cluster(**changes):
    return ClusterFile.model_validate(
        {"version": 1, "nodes": 4, "devices_per_node": 8, "device": DEVICE, "links": LINKS, **changes}
    )


def task(shape=QWEN_7B, **changes):
    fields = {
        "version": 1,
        "model": shape.model_dump(),
        "sequence_length": 4096,
        "rows_per_step": 256,
        **changes,
    }
    return ScreenFile.model_validate(fields)


@pytest.fixture(scope="module")
def screened():
    return screen(cluster(), task(), QWEN_7B, MODEL)


def test_every_strategy_is_a_cut_that_can_be(screened):
    assert screened.ranked and screened.tried > len(screened.ranked)
    for item in screened.ranked:
        cut = item.strategy
        assert cut.devices == 32 and cut.data * cut.micro_batch_size * cut.micro_batches == 256
        assert QWEN_7B.layers % cut.pipeline == 0 and QWEN_7B.heads % cut.model == 0 and cut.model <= 8
        assert cut.micro_batches >= cut.pipeline
        assert item.memory_gib <= 64
    assert sum(screened.dropped.values()) < screened.tried
    assert {"memory", "heads can't be cut", "layers aren't a multiple of pipeline"} <= set(screened.dropped)


def test_ranks_rise_and_groups_hold_what_the_error_cannot_tell_apart(screened):
    times = [item.total_s for item in screened.ranked]
    assert times == sorted(times)
    for item in screened.ranked:
        first = next(other for other in screened.ranked if other.group == item.group)
        assert first.total_s <= item.total_s <= first.total_s * 1.05
        assert item.error_s == pytest.approx(0.05 * item.total_s)
    groups = [item.group for item in screened.ranked]
    assert groups == sorted(groups) and groups[0] == 1


def test_times_are_made_of_their_parts(screened):
    first = screened.ranked[0]
    assert first.total_s == pytest.approx(sum(first.seconds.values()))
    tokens = 256 * 4096
    assert first.tokens_per_s == pytest.approx(tokens / first.total_s)
    assert 0 < first.mfu < 0.5


def test_communication_between_nodes_costs_more_than_within(screened):
    """A replica's ring spans nodes as soon as model · data is above a node's devices."""
    alone = screen(cluster(), task(search={"devices": 8}), QWEN_7B, MODEL)
    data_only = [item for item in alone.ranked if item.strategy.data == 8]
    across = [item for item in screened.ranked if item.strategy.data == 32]
    assert data_only and across
    assert min(item.seconds["data"] for item in across) > 3 * max(item.seconds["data"] for item in data_only)


def test_a_calibrated_model_ignores_the_links():
    calibrated = TimeModel(efficiency=0.5, tensor_gb_s=100, relative_error=0.05, calibrated=True)
    found = screen(cluster(), task(), QWEN_7B, calibrated)
    assert all(item.seconds["data"] == 0 for item in found.ranked)


def test_more_memory_never_drops_a_strategy():
    kept = []
    for memory in (16, 24, 32, 64, 128):
        found = screen(cluster(device={**DEVICE, "memory_gib": memory}), task(), QWEN_7B, MODEL)
        kept.append({str(item.seconds) + str(item.strategy.micro_batch_size) for item in found.ranked})
    for less, more in pairwise(kept):
        assert less <= more


def test_recomputation_is_only_chosen_for_want_of_memory():
    """The same cut with less recomputation is faster, so that it stands first where it fits."""
    found = screen(cluster(device={**DEVICE, "memory_gib": 500}), task(), QWEN_7B, MODEL)
    cuts = {}
    for item in found.ranked:
        cut = item.strategy
        cuts.setdefault((cut.data, cut.model, cut.pipeline, cut.micro_batch_size), []).append(cut.recompute)
    assert all(order[0] != "full" for order in cuts.values())


def test_interleaving_shortens_the_bubble_for_memory():
    search = {
        "devices": 4,
        "recompute": ["full"],
        "zero_stages": [0],
        "interleave": [1, 7],
        "micro_batch_sizes": [1],
    }
    shape = ModelShape(hidden_size=512, layers=28, heads=8, intermediate_size=1408, vocab_size=1024)
    found = screen(cluster(), task(shape, rows_per_step=8, search=search), shape, MODEL)
    by_chunks = {item.strategy.interleave: item for item in found.ranked if item.strategy.pipeline == 4}
    assert by_chunks[7].total_s < by_chunks[1].total_s and by_chunks[7].memory_gib > by_chunks[1].memory_gib


def test_an_unmeasured_model_gets_a_wide_error():
    found = screen(cluster(), task(), QWEN_7B, TimeModel(efficiency=0.5))
    assert found.relative_error == UNMEASURED_ERROR


def test_nothing_fits_is_a_result():
    found = screen(cluster(device={**DEVICE, "memory_gib": 1}), task(), QWEN_7B, MODEL)
    assert found.ranked == () and found.dropped["memory"] > 0
    assert table(found.ranked) == ""


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(InputError, match=r"search\.devices 64 is above the cluster's 32"):
        screen(cluster(), task(search={"devices": 64}), QWEN_7B, MODEL)


def test_the_fragments_are_parallel_configurations(screened):
    for item in screened.ranked:
        content = yaml.safe_load(training_fragment(item, QWEN_7B, 4096))
        parallel = ParallelConfig.model_validate(content["parallel"])
        cut = item.strategy
        assert parallel.devices == cut.devices
        rows = content["batch_size"] * content["accumulation"] * parallel.data
        assert rows == 256
        assert content["batch_size"] // parallel.micro_batches == cut.micro_batch_size


def test_what_a_training_has_no_key_for_is_said():
    cut = Strategy(
        data=2,
        model=2,
        pipeline=2,
        micro_batches=4,
        zero_stage=2,
        interleave=2,
        sequence_parallel=True,
        recompute="selective",
    )
    fields, missing = parallel_fields(cut, QWEN_7B)
    assert fields["parallel"] == {
        "data": 2,
        "model": 2,
        "pipeline": 2,
        "micro_batches": 4,
        "optimizer_shard": True,
    }
    assert [text.split(" ")[0] for text in missing] == [
        "sequence_parallel",
        "interleave",
        "zero_stage",
        "recompute",
    ]
    assert (
        parallel_fields(Strategy(recompute="attention"), QWEN_7B)[0]["parallel"]["recompute"] == "selective"
    )


UNITS = ("_s", "_gib", "_rows", "mfu")
# Counts, names and yes or no: nothing that has a unit.
NO_UNIT = {
    "group", "memory_close", "data", "model", "pipeline", "micro_batches", "sequence_parallel", "schedule", "interleave",
    "zero_stage", "recompute",
}  # fmt: skip


def test_every_column_that_has_a_unit_names_it(screened):
    rows = list(csv.DictReader(io.StringIO(table(screened.ranked))))
    assert len(rows) == len(screened.ranked)
    for name in rows[0]:
        assert name in NO_UNIT or name.endswith(UNITS) or name == "tokens_per_s", name


def test_an_uneven_model_needs_leave_to_be_cut():
    shape = ModelShape(hidden_size=1024, layers=10, heads=8, intermediate_size=4096, vocab_size=1024, **GPT)
    search = {"devices": 4, "micro_batch_sizes": [1], "recompute": ["none"], "zero_stages": [0]}
    even = strategies(task(shape, search=search), shape, 4, 8)
    uneven = strategies(task(shape, search={**search, "uneven_stages": True}), shape, 4, 8)
    assert not any(isinstance(cut, Strategy) and cut.pipeline == 4 for cut in even)
    assert any(isinstance(cut, Strategy) and cut.pipeline == 4 for cut in uneven)


def test_a_cut_that_the_training_cannot_make_is_said():
    cut = Strategy(model=7, pipeline=3, micro_batches=3)
    _, missing = parallel_fields(cut, QWEN_7B)
    assert [text.split(" ")[0] for text in missing] == ["kv_heads", "layers", "a"]
    assert "vocab_multiple to 7" in missing[-1]
    for segments, said in (
        (7, []),
        (3, ["runs of 3 in stages of 7 layers, which `trainer train` only cuts evenly"]),
    ):
        cut = Strategy(pipeline=4, micro_batches=4, recompute={"segments": segments})
        assert parallel_fields(cut, QWEN_7B)[1] == said


def test_interleaving_needs_whole_rounds_of_micro_batches():
    search = {
        "devices": 4,
        "recompute": ["full"],
        "zero_stages": [0],
        "interleave": [7],
        "micro_batch_sizes": [1],
    }
    tried = list(strategies(task(rows_per_step=6, search=search), QWEN_7B, 4, 8))
    assert any(isinstance(item, str) and "interleaving" in item for item in tried)
    assert all(cut.micro_batches % cut.pipeline == 0 for cut in tried if isinstance(cut, Strategy))


def test_transfers_between_stages_grow_with_chunks_and_micro_batches():
    search = {
        "devices": 16,
        "recompute": ["full"],
        "zero_stages": [0],
        "interleave": [1, 7],
        "micro_batch_sizes": [1],
    }
    found = screen(cluster(device={**DEVICE, "memory_gib": 500}), task(search=search), QWEN_7B, MODEL)
    seconds = {(item.strategy.pipeline, item.strategy.model, item.strategy.interleave): item.seconds["pipeline"]
               for item in found.ranked}  # fmt: skip
    assert seconds[4, 4, 7] == pytest.approx(7 * seconds[4, 4, 1]) and seconds[1, 4, 1] == 0
    # 4 ranks of a stage: its neighbour is in the same node; with 8 it isn't.
    size, micro_batches = 2 * 4096 * 3584, 256
    assert seconds[4, 4, 1] == pytest.approx(
        2 * micro_batches * size / (cluster().link(5).curve().at(size) * 1e9), rel=1e-9
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("interleave", []),
        ("recompute", []),
        ("micro_batch_sizes", []),
        ("schedules", []),
        ("zero_stages", [4]),
        ("zero_stages", [True]),
        ("micro_batch_sizes", ["2"]),
        ("micro_batch_sizes", [1, True]),
        ("sequence_parallel", [1]),
        ("max_model", True),
        ("uneven_stages", "yes"),
        ("micro_batch_sizes", [1, 2, 1]),
        ("recompute", ["none", {"segments": 2}, {"segments": 2}]),
        ("zero_stages", [0, 0]),
    ],
)
def test_a_search_over_nothing_an_unknown_stage_or_the_wrong_kind_is_refused(name, values):
    with pytest.raises(ValidationError, match=name):
        SearchSpace.model_validate({name: values})


def test_a_direction_that_isnt_cut_is_tried_whatever_the_lists_ask_for():
    """With zero_stages: [1] alone all cuts of one replica were left out, without a word."""
    search = {
        "zero_stages": [1],
        "sequence_parallel": [True],
        "interleave": [2],
        "micro_batch_sizes": [1],
        "recompute": ["none"],
    }
    tried = [item for item in strategies(task(search=search), QWEN_7B, 8, 8) if isinstance(item, Strategy)]
    cuts = {(item.data, item.model, item.pipeline) for item in tried}
    assert {(1, 4, 2), (4, 1, 2), (8, 1, 1)} <= cuts
    for item in tried:
        assert item.zero_stage == (item.data > 1) and item.sequence_parallel == (item.model > 1)
        assert item.interleave == (2 if item.pipeline > 1 else 1)
    both = {**search, "zero_stages": [0, 1], "sequence_parallel": [False, True], "interleave": [1, 2]}
    every = [item for item in strategies(task(search=both), QWEN_7B, 8, 8) if isinstance(item, Strategy)]
    assert len(every) == len(set(every))


def test_every_strategy_is_accounted_for(screened):
    said = screened.to_json()
    assert said["tried"] == said["fitting"] + sum(said["dropped"].values()) + said["same_time"]
    roomy = screen(cluster(), task(search={"zero_stages": [0, 1], "recompute": ["none"]}), QWEN_7B, MODEL)
    assert roomy.same_time > 0 and screened.same_time >= 0
