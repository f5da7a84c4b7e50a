"""Cells of the cube against sums by hand, and the files that are written from it."""

import json

import numpy as np
import pytest
from pyarrow import parquet

from tests.trainer.timeline.synthetic import communication, kernel, step, write_run, write_trace
from trainer.timeline.cube import METRICS, _weighted, build_cube
from trainer.timeline.perfetto import lanes_of
from trainer.timeline.run import analyse, write_analysis


def cube_of(analysis):
    return build_cube(analysis.ranks, analysis.skew, analysis.world, [])


def test_the_cells_add_up_to_the_intervals(tmp_path):
    analysis = analyse(write_run(tmp_path / "run", 3, slow_rank=1))
    cube = cube_of(analysis)
    width = np.diff(cube.edges_ns)
    for at, rank in enumerate(analysis.ranks):
        seen = ~np.isnan(cube.values["compute_utilisation"][at])
        assert seen.mean() > 0.98
        total = (cube.values["compute_utilisation"][at] * width)[seen].sum()
        assert total == pytest.approx((rank.computing[:, 1] - rank.computing[:, 0]).sum(), rel=0.01)
    for metric in METRICS:
        known = cube.values[metric][~np.isnan(cube.values[metric])]
        assert ((known >= 0) & (known <= 1)).all()
    assert np.isnan(cube.values["memory_bandwidth_utilisation"]).all()


def test_half_a_cell_of_each(tmp_path):
    """A window of known length: computing, then exposed communication, then nothing."""
    events = [kernel("MatMul-op1", 0, 400), communication("hcom_allReduce__1_0", 400, 200), step(1, 0, 1000)]
    cube = cube_of(analyse(write_trace(tmp_path / "rank_0" / "trace_view.json", events)))
    four, six = round(0.4 * cube.bins), round(0.6 * cube.bins)
    compute, wait = cube.values["compute_utilisation"][0], cube.values["communication_wait"][0]
    assert compute[: four - 1].min() == 1 and compute[four + 1 :].max() == 0
    assert wait[: four - 1].max() == 0 and wait[four + 1 : six - 1].min() == 1
    assert wait[six + 1 :].max() == 0


def test_missing_ranks_are_rows_of_unknown_cells(tmp_path):
    analysis = analyse(write_run(tmp_path / "run", 4, missing=frozenset({1})))
    cube = cube_of(analysis)
    assert cube.ranks == (0, 1, 2, 3)
    assert np.isnan(cube.values["compute_utilisation"][1]).all()
    assert cube.why_unknown == {1: "not in the folder"}


def test_clocks_are_corrected_before_cells_are_compared(tmp_path):
    straight = cube_of(analyse(write_run(tmp_path / "a", 3)))
    skewed = analyse(write_run(tmp_path / "b", 3, clock_us={1: 250_000.0, 2: -1_000.0}))
    assert skewed.skew.offsets[1].offset_ns == pytest.approx(250e6, abs=5_000)
    cube = cube_of(skewed)
    assert cube.edges_ns[-1] - cube.edges_ns[0] == pytest.approx(
        straight.edges_ns[-1] - straight.edges_ns[0], rel=0.01
    )
    width = (cube.edges_ns[-1] - cube.edges_ns[0]) / cube.bins
    ends = [int(np.flatnonzero(row > 0.5)[-1] * width) for row in cube.values["compute_utilisation"]]
    assert max(ends) - min(ends) < 12_000  # the optimizer ends within some µs on all ranks


def test_weighted_integral():
    start, end = np.array([0, 10, 10]), np.array([20, 30, 15])
    found = _weighted(start, end, np.array([0.5, 0.25, 1.0]), np.array([0, 10, 20, 40]))
    assert found.tolist() == [5.0, 5.0 + 2.5 + 5.0, 2.5]


def test_memory_bandwidth_from_kernel_counters(tmp_path, traces):
    analysis = analyse(traces / "mstt_kernel_details" / "kernel_details_2025_bf16.csv")
    row = cube_of(analysis).values["memory_bandwidth_utilisation"][0]
    assert 0 < np.nanmax(row) <= 1


def test_the_files(tmp_path):
    analysis = analyse(write_run(tmp_path / "run", 3, slow_rank=1, missing=frozenset({2}), steps=4))
    cube = write_analysis(analysis, tmp_path / "out", "run")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "cube.parquet",
        "findings.json",
        "heatmap.html",
        "trace.json",
    ]
    table = parquet.read_table(tmp_path / "out" / "cube.parquet")
    assert table.num_rows == len(cube.ranks) * cube.bins
    assert table.column_names == ["rank", "start_ns", "end_ns", *METRICS]
    assert table["memory_bandwidth_utilisation"].null_count == table.num_rows
    found = json.loads((tmp_path / "out" / "findings.json").read_text())
    assert found["findings"] == [finding.to_json() for finding in analysis.findings]
    page = (tmp_path / "out" / "heatmap.html").read_text()
    assert "http:" not in page and "https:" not in page


def test_an_offset_that_is_not_applied_is_told_so(alexnet, marey, tmp_path):
    write_analysis(alexnet, tmp_path / "out", "within the uncertainty")
    assert "30.61 ± 118.06 µs (not taken off)" in (tmp_path / "out" / "heatmap.html").read_text()
    write_analysis(marey, tmp_path / "other", "beyond it")
    assert "-233,033.11 ± 0.45 µs<" in (tmp_path / "other" / "heatmap.html").read_text()


def test_the_trace_for_perfetto_nests_and_is_corrected(tmp_path):
    analysis = analyse(write_run(tmp_path / "run", 2, clock_us={1: 40_000.0}))
    write_analysis(analysis, tmp_path / "out", "run")
    document = json.loads((tmp_path / "out" / "trace.json").read_text())
    tracks = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"])
            )
    for slices in tracks.values():
        open_ends = []
        for start, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
            while open_ends and open_ends[-1] <= start + 5e-4:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 5e-4
            open_ends.append(end)
    ends = {
        pid: max(e["ts"] + e["dur"] for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == pid)
        for pid in (0, 1)
    }
    assert ends[0] == pytest.approx(ends[1], abs=10)  # µs, on one clock
    counted = sum(
        1 for event in document["traceEvents"] if event["ph"] == "X" and "MatMul-op" in event["name"]
    )
    assert counted == 2 * 6 * 24


def test_lanes():
    start, end = np.array([0, 5, 6, 20]), np.array([10, 15, 8, 30])
    assert [lane.tolist() for lane in lanes_of(start, end)] == [[0, 2, 3], [1]]
    assert [lane.tolist() for lane in lanes_of(start[[0, 3]], end[[0, 3]])] == [[0, 1]]
    assert lanes_of(start[:0], end[:0]) == []
