"""Public faults of trace tools: D1 to D23, and ten defective traces of a profiler's own test data."""

import gzip
import json

import numpy as np
import pytest

from tests.trainer.timeline.synthetic import (
    communication,
    kernel,
    step,
    write_run,
    write_trace,
)
from trainer.timeline import intervals, selection
from trainer.timeline.cube import build_cube
from trainer.timeline.facts.parts import all_step_parts
from trainer.timeline.roles import Role
from trainer.timeline.run import analyse, write_analysis


@pytest.fixture(scope="module")
def traces(shared_data):
    return shared_data / "traces"


def kineto(path, events, **header):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, **header, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def gpu(name, ts, dur, correlation=None, category="kernel", pid=0, tid=7):
    event = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {},
    }
    if correlation is not None:
        event["args"]["correlation"] = correlation
    return event


def launch(ts, correlation):
    return gpu("cudaLaunchKernel", ts, 5, correlation, "cuda_runtime", pid=99, tid=99)


def count(analysis, kind):
    return analysis.recording.quarantine.count(kind)


def times(analysis, role=Role.COMPUTE):
    events = analysis.ranks[0].events_of(role)
    return list(zip(events.start.tolist(), events.duration.tolist(), strict=True))


def test_d1_text_and_relative_numbers_give_the_same_nesting(tmp_path):
    """Text times of 1.7e15 µs, as float64, are off by up to 0.25 µs: a fifth of the kernels mis-nest."""
    outer = [(n * 3.3, 1.101) for n in range(200)]
    absolute = [kernel(f"MatMul-op{n}", at, length) for n, (at, length) in enumerate(outer)]
    relative = [dict(event) | {"ts": round(at, 3)} for event, (at, _) in zip(absolute, outer, strict=True)]
    numbers = [dict(event) | {"ts": 0} for event in absolute]
    text = json.dumps(numbers)
    for event in absolute:  # the same digits as a JSON number, which a double can't hold
        text = text.replace('"ts": 0,', f'"ts": {event["ts"]},', 1)
    a = analyse(write_trace(tmp_path / "a" / "trace_view.json", absolute))
    b = analyse(write_trace(tmp_path / "b" / "trace_view.json", relative))
    path = write_trace(tmp_path / "c" / "trace_view.json", [])
    path.write_text(path.read_text()[:-1] + ", " + text[1:])
    c = analyse(path)
    shift = times(a)[0][0]
    assert [(start - shift, length) for start, length in times(a)] == times(b)
    assert times(c) == times(a)
    assert times(a)[1][0] - times(a)[0][0] == 3_300
    for analysis in (a, b, c):
        assert count(analysis, "overlap_on_track") == 0


def test_d1_flow_ids_beyond_2_to_53(traces):
    analysis = analyse(traces / "mstt_trace_view")
    assert len(analysis.recording.files[0].launch_ns) == 274


def test_d2_d18_broken_json_keeps_its_readable_prefix(tmp_path):
    events = [kernel(f"MatMul-op{n}", n * 10, 5) for n in range(50)]
    path = write_trace(tmp_path / "trace_view.json", events)
    text = path.read_text()
    path.write_text(text[:-30])
    analysis = analyse(path)
    assert len(times(analysis)) == 49
    [row] = [row for row in analysis.recording.quarantine.rows() if row["kind"] == "broken_tail"]
    assert row["count"] == 1 and text[int(row["example"].split()[1][:-1]) :].lstrip().startswith('{"ph": "X"')
    path.write_text(text.replace('"name": "MatMul-op20"', '"name": "MatMul-op20'))  # a missing quote
    analysis = analyse(path)
    assert len(times(analysis)) == 49 and count(analysis, "malformed_event") == 1


def test_d3_device_data_lost_at_the_head_is_unknown_not_idle(tmp_path):
    events = [gpu(f"ProfilerStep#{n}", 1000 * n, 1000, category="user_annotation", pid=99) for n in range(4)]
    for n in range(4):
        events += [launch(1000 * n + 100 * k, 10 * n + k + 1) for k in range(8)]
        if n:  # the first step's kernels are lost
            events += [gpu("gemm", 1000 * n + 100 * k + 20, 90, 10 * n + k + 1) for k in range(8)]
    analysis = analyse(kineto(tmp_path / "rank_0.json", events))
    assert [part.step for part in all_step_parts(analysis.ranks[0])] == ["1", "2", "3"]
    cube = build_cube(analysis.ranks, analysis.skew, analysis.world, [])
    assert (
        int(cube.edges_ns[0]) >= 1_000_000
        or np.isnan(cube.values["compute_utilisation"][0][: cube.bins // 5]).all()
    )
    assert analysis.fact("free_share") < 0.3
    assert "lost_device_data" in {finding.rule for finding in analysis.findings}


def test_d4_a_trace_without_any_rank(tmp_path):
    path = kineto(tmp_path / "some_trace.json", [gpu("gemm", 5, 10)], distributedInfo={"backend": "nccl"})
    analysis = analyse(path)
    assert [rank.rank for rank in analysis.ranks] == [0]
    assert "no rank in its content or name" in analysis.notes()[0] and "--ranks" in analysis.notes()[0]
    assert analyse(path, {"some_*.json": 9}).ranks[0].rank == 9
    assert analyse(path.rename(tmp_path / "rank-34.pt.trace.json")).ranks[0].rank == 34


def test_d5_an_empty_result_carries_its_reason(tmp_path):
    analysis = analyse(kineto(tmp_path / "rank_0.json", [gpu("aten::mm", 5, 10, category="cpu_op")]))
    assert analysis.findings == ()
    assert analysis.notes() == ["rank 0: no device rows in its trace: what the device did isn't known"]
    assert {item.rule for item in analysis.verdicts.undecided} >= {"host_bound", "communication_bound"}
    cube = write_analysis(analysis, tmp_path / "out", "x")
    assert np.isnan(cube.values["compute_utilisation"]).all()
    assert "what the device did" in (tmp_path / "out" / "heatmap.html").read_text()


def test_d6_unions_equal_the_profilers_own_rows(traces):
    """Twenty golden files hold this in test_golden.py; here the real trace's own overlap rows."""
    analysis = analyse(traces / "ms_alexnet_dp2")
    for rank in analysis.ranks:
        own = rank.events_of(Role.PROFILER_COMPUTE)
        assert (
            abs(intervals.total(intervals.union(own.start, own.end)) - intervals.total(rank.computing)) <= 100
        )
        own = rank.events_of(Role.PROFILER_COMMUNICATION)
        assert (
            abs(intervals.total(intervals.union(own.start, own.end)) - intervals.total(rank.communication))
            <= 100
        )


def test_d7_synchronisation_is_no_kernel(tmp_path):
    events = [gpu("gemm", 0, 100), gpu("Stream Wait Event", 100, 900, category="cuda_sync")]
    events += [gpu("Memcpy HtoD", 1000, 50, category="gpu_memcpy"), gpu("gemm", 2000, 1)]
    analysis = analyse(kineto(tmp_path / "rank_0.json", events))
    assert intervals.total(analysis.ranks[0].computing) == 101_000
    ascend = [kernel("MatMul-op1", 0, 100), kernel("NOTIFY_WAIT", 100, 500, "NOTIFY_WAIT")]
    ascend += [kernel("EVENT_WAIT", 700, 50, "EVENT_WAIT"), kernel("MEMCPY_ASYNC", 800, 50, "Other")]
    analysis = analyse(write_trace(tmp_path / "a" / "trace_view.json", ascend))
    assert intervals.total(analysis.ranks[0].computing) == 100_000


def test_d8_without_step_marks_the_trace_is_one_step(tmp_path):
    analysis = analyse(
        write_trace(tmp_path / "trace_view.json", [kernel("MatMul-op1", 0, 60), kernel("Add-op2", 90, 10)])
    )
    [part] = all_step_parts(analysis.ranks[0])
    assert (part.step_ns, part.computing_ns, part.free_ns) == (100_000, 70_000, 30_000)


def test_d9_an_overflowed_duration_is_cut_at_the_next_task(tmp_path):
    events = [kernel(f"MatMul-op{n}", n * 100, 31_000 if n == 3 else 50) for n in range(10)]
    analysis = analyse(write_trace(tmp_path / "trace_view.json", events))
    assert count(analysis, "overlap_on_track") == 1
    # Time that is taken away is said to be, on stderr too.
    assert any("overlap_on_track, 1 cut: " in line for line in analysis.recording.quarantine.lines())
    assert intervals.total(analysis.ranks[0].computing) == 9 * 50_000 + 100_000


def test_d10_overlapping_slices_get_lanes_and_none_is_lost(tmp_path):
    events = [communication(f"hcom_allReduce__{n}", n * 10, 25) for n in range(20)]
    analysis = analyse(write_trace(tmp_path / "trace_view.json", events))
    write_analysis(analysis, tmp_path / "out", "x")
    document = json.loads((tmp_path / "out" / "trace.json").read_text())
    rows = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    found = [e for e in document["traceEvents"] if e["ph"] == "X" and "hcom" in e["name"]]
    assert len(found) == 20
    assert len({rows[e["pid"], e["tid"]] for e in found}) == 3  # 25 µs every 10 µs: three at a time


def test_d11_a_child_that_outlives_its_parent_is_counted_beyond_rounding(tmp_path):
    def host(ts, dur):
        return gpu("aten::mm", ts, dur, category="cpu_op", pid=99, tid=1)

    analysis = analyse(
        kineto(tmp_path / "a" / "rank_0.json", [host(0, 100), host(50, 51), gpu("gemm", 0, 1)])
    )
    assert count(analysis, "child_after_parent") == 0  # whole microseconds: 1 µs is rounding
    analysis = analyse(
        kineto(tmp_path / "b" / "rank_0.json", [host(0, 100), host(50, 60), gpu("gemm", 0, 1)])
    )
    assert count(analysis, "child_after_parent") == 1


def test_d12_an_end_closes_the_begin_of_its_name(tmp_path):
    def mark(phase, name, ts):
        return {"ph": phase, "name": name, "pid": 3, "tid": 2, "ts": ts, "args": {"Task Type": "AI_CORE"}}

    events = [mark("B", "outer", 0), mark("B", "inner", 10), mark("E", "outer", 100), mark("E", "inner", 40)]
    events += [
        mark("E", "stray", 50),
        mark("B", "open", 60),
        {"ph": "B", "name": "plain", "pid": 3, "tid": 9, "ts": 5},
    ]
    events.append({"ph": "E", "pid": 3, "tid": 9, "ts": 7})  # without a name: the most recent one
    analysis = analyse(write_trace(tmp_path / "trace_view.json", events))
    names = analysis.recording.names.texts
    found = {
        names[name]: (int(start), int(length))
        for part in analysis.recording.files[0].tracks.values()
        for start, length, name in zip(part.start, part.duration, part.name, strict=True)
    }
    assert found == {"outer": (0, 100_000), "inner": (10_000, 30_000), "plain": (5_000, 2_000)}
    assert (count(analysis, "crossed_end"), count(analysis, "unmatched_end")) == (1, 1)
    assert count(analysis, "unmatched_begin") == 1


def test_d13_negative_durations_are_dropped_and_counted(tmp_path):
    events = [
        kernel("MatMul-op1", 0, 100),
        kernel("MatMul-op2", 200, -5),
        kernel("Mul-op3", 300, -18446744073709),
    ]
    analysis = analyse(write_trace(tmp_path / "trace_view.json", events))
    assert count(analysis, "negative_duration") == 2
    assert len(times(analysis)) == 1


def test_d14_every_part_of_a_step_is_at_least_0_and_they_add_up(tmp_path):
    events = [kernel("MatMul-op1", 0, 700), communication("hcom_allReduce__1", 100, 800), step(1, 0, 600)]
    events += [communication("hcom_allReduce__2", 50, 2000), kernel("Add-op2", 650, 100)]
    analysis = analyse(write_trace(tmp_path / "trace_view.json", events))
    [part] = all_step_parts(analysis.ranks[0])
    parts = (part.computing_ns, part.exposed_ns, part.free_ns)
    assert min(parts) >= 0 and sum(parts) == part.step_ns == 600_000
    assert part.communication_ns == 550_000


def test_d15_zero_time_stamps_of_half_a_trace_are_excluded_and_their_share_shown(tmp_path):
    good = [kernel(f"MatMul-op{n}", n * 100, 50) for n in range(40)]
    zeros = [dict(kernel(f"Add-op{n}", 0, 0)) | {"ts": "0.000", "dur": "0.000"} for n in range(60)]
    analysis = analyse(write_trace(tmp_path / "trace_view.json", good + zeros))
    [row] = [row for row in analysis.recording.quarantine.rows() if row["kind"] == "out_of_window"]
    assert row["count"] == 60 and "60.0 %" in row["example"]
    assert len(times(analysis)) == 40
    assert analysis.ranks[0].end_ns - analysis.ranks[0].start_ns == 3_950_000


def test_d16_control_characters_in_a_name(tmp_path):
    path = write_trace(
        tmp_path / "trace_view.json", [kernel("MatMul-opXX", 0, 10), kernel("Add-op2", 20, 10)]
    )
    path.write_bytes(path.read_bytes().replace(b"XX", b"\x00\x1b"))
    analysis = analyse(path)
    assert len(times(analysis)) == 2 and count(analysis, "repaired_text") == 1


def test_d17_launches_without_kernels_are_counted(tmp_path):
    events = [launch(10 * n, n + 1) for n in range(100)] + [
        gpu("gemm", 10 * n + 3, 5, n + 1) for n in range(90)
    ]
    analysis = analyse(kineto(tmp_path / "rank_0.json", events))
    assert count(analysis, "launch_without_kernel") == 10
    found = next(finding for finding in analysis.findings if finding.rule == "lost_device_data")
    assert found.value("lost_launch_share") == pytest.approx(0.1)


def test_d19_device_starts_before_their_launch_are_counted_not_hidden(traces):
    analysis = analyse(traces / "mstt_trace_view")
    [row] = [row for row in analysis.recording.quarantine.rows() if row["kind"] == "device_before_launch"]
    assert (row["count"], row["example"], row["treatment"]) == (2, "2 of 274 launches", "kept")


def test_d20_d21_clocks_233_ms_apart(traces):
    analysis = analyse(traces / "ms_marey_pp2_4dev")
    offset = analysis.skew.offsets[2]
    assert abs(offset.offset_ns + 233_033_000) < offset.uncertainty_ns < 3_000
    cube = build_cube(analysis.ranks, analysis.skew, analysis.world, [])
    assert cube.edges_ns[-1] - cube.edges_ns[0] < 1_000_000_000


def test_d22_a_phase_that_was_not_measured_is_unknown(tmp_path):
    (tmp_path / "step_trace_time.csv").write_text(
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n0,1,10,0,0,0,90\n"
    )
    analysis = analyse(tmp_path)
    [row] = analysis.recording.steps
    assert row.bubble_ns is None and row.stage_ns is None
    assert analysis.fact("receive_alone_share") is None
    assert "between_stage_communication" in {item.rule for item in analysis.verdicts.undecided}


def test_d23_a_huge_trace_is_told_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "_LARGE_BYTES", 1000)
    analysis = analyse(write_run(tmp_path, 1, steps=5))
    assert "a step: record fewer steps" in analysis.notes()[0]


@pytest.mark.parametrize(
    ("name", "ranks", "kind", "number", "told"),
    [
        ("rank0", [0], "zero_duration", 30_423, ""),
        ("rank_not_found", [0], "zero_duration", 173, "no rank in its content or name"),
        ("distributed_info_not_found", [0], "zero_duration", 173, "no rank in its content or name"),
        ("rank_non_gpu", [0], "zero_duration", 173, "no device rows"),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace", [34], "zero_duration", 0, "no device rows"),
        ("base", [1], "zero_duration", 3, ""),
        ("test", [1], "launch_without_kernel", 1, ""),
        ("inference_rank_1", [1], "zero_duration", 2, ""),
        ("triton_example", [0], "negative_duration", 0, "no rank in its content or name"),
    ],
)
def test_defective_traces(traces, name, ranks, kind, number, told):
    analysis = analyse(traces / "hta_defects" / f"{name}.json.gz")
    assert [rank.rank for rank in analysis.ranks] == ranks
    assert count(analysis, kind) == number
    assert told in " ".join(analysis.notes())
    for rank in analysis.ranks:
        for part in all_step_parts(rank):
            assert part.computing_ns + part.exposed_ns + part.free_ns == part.step_ns
            assert min(part.computing_ns, part.exposed_ns, part.free_ns) >= 0
    if name.startswith("rank-34"):
        assert analysis.world.size == 300 and len(analysis.world.missing) == 299


def test_a_defective_trace_that_is_no_timeline_says_so(traces):
    from evalkit.errors import InputError

    with pytest.raises(InputError, match=r"benchmark_simple_add_et\.json\.gz: .*: no timed events"):
        analyse(traces / "hta_defects" / "benchmark_simple_add_et.json.gz")


def test_all_defective_traces_in_one_folder(traces, tmp_path):
    """Traces of different times are told apart, and one recording is analysed; nothing is mixed."""
    analysis = analyse(traces / "hta_defects")
    assert "recordings of different times" in analysis.notes()[0]
    assert count(analysis, "other_recording") > 0 and count(analysis, "not_a_timeline") == 1
    assert all(rank.end_ns - rank.start_ns < 3_600 * 10**9 for rank in analysis.ranks)
    write_analysis(analysis, tmp_path / "out", "x")
