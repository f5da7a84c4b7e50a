"""Real traces against known answers: the profiler's own rows, MindInsight's published ones, and truths in the files."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from trainer.timeline import intervals
from trainer.timeline.facts.parts import all_step_parts
from trainer.timeline.roles import Role, collective_of

TENTH_OF_A_MICROSECOND = 100


def rows_of(traces):
    with (traces / "ms_alexnet_dp2" / "expected_steps.csv").open() as stream:
        return list(csv.DictReader(stream))


def expected(traces, folder):
    return json.loads((traces / folder / "expected.json").read_text())


def rules(analysis):
    return [finding.rule for finding in analysis.findings]


def finding(analysis, rule, subject=""):
    return next(f for f in analysis.findings if f.rule == rule and f.summary.startswith(subject))


@pytest.mark.parametrize("index", range(20))
def test_alexnet_the_union_equals_the_profilers_own_rows(alexnet, traces, index):
    row = rows_of(traces)[index]
    rank = alexnet.ranks[int(row["device"])]
    part = next(part for part in all_step_parts(rank) if part.step == row["step"])
    for name, found in (
        ("iteration_us", part.step_ns),
        ("prof_computing_us", part.computing_ns),
        ("prof_communication_us", part.communication_ns),
        ("prof_exposed_us", part.exposed_ns),
    ):
        assert abs(found - float(row[name]) * 1e3) <= TENTH_OF_A_MICROSECOND, name
    assert part.computing_ns + part.exposed_ns + part.free_ns == part.step_ns
    # The profiler's Free row begins with the first task and ends with the last one, not with the step.
    step = next(step for step in rank.steps if str(step.step) == row["step"])
    busy = intervals.clip(intervals.union_of(rank.computing, rank.communication), step.start_ns, step.end_ns)
    inside = intervals.breakdown(rank.computing, rank.communication, int(busy[0, 0]), int(busy[-1, 1]))
    assert abs(inside.free_ns - float(row["prof_free_us"]) * 1e3) <= TENTH_OF_A_MICROSECOND


def test_alexnet_summing_the_planes_would_count_four_times(alexnet, traces):
    """What the union avoids: the tasks of the planes add up to several times the step."""
    tasks = alexnet.ranks[0].events_of(Role.COMMUNICATION_TASK)
    step = alexnet.ranks[0].steps[0]
    inside = tasks.where((tasks.start >= step.start_ns) & (tasks.end <= step.end_ns))
    assert inside.duration.sum() / 1e3 == pytest.approx(
        float(rows_of(traces)[0]["naive_sum_hccl_planes_us"]), rel=1e-6
    )
    assert inside.duration.sum() > 3 * (step.end_ns - step.start_ns)


def test_alexnet_verdict(alexnet):
    assert "all_reduce_bound" in rules(alexnet)
    assert "not_overlapped" in rules(alexnet)
    assert not {"host_bound", "data_bound", "load_imbalance", "communication_bound"} & set(rules(alexnet))
    found = finding(alexnet, "all_reduce_bound")
    assert found.value("overlap_share") == 0.0
    assert found.value("all_reduce_share") == 1.0
    assert found.value("exposed_share") == pytest.approx(0.62, abs=0.01)  # without the first step
    assert {rival.rule for rival in found.rivals} == {
        "not_overlapped",
        "load_imbalance",
        "slow_link",
        "host_bound",
    }
    assert "speak against it" in next(r.because for r in found.rivals if r.rule == "host_bound")


def test_alexnet_compute_over_communication_of_the_first_device(alexnet):
    parts = all_step_parts(alexnet.ranks[0])[1:]
    ratio = sum(part.computing_ns for part in parts) / sum(part.communication_ns for part in parts)
    assert ratio == pytest.approx(0.61, abs=0.03)


def test_alexnet_six_ranks_are_missing(alexnet, traces):
    labels = expected(traces, "ms_alexnet_dp2")["labels"]
    assert alexnet.world.size == labels["world_size_inferred"]
    assert alexnet.world.present == tuple(labels["ranks_present"])
    assert alexnet.world.missing == (2, 3, 4, 5, 6, 7)
    for rank in alexnet.ranks:
        # The sentinel for "none" is no rank.
        assert sorted(rank.peers - {rank.rank}) == labels["peers_seen"][str(rank.rank)]
    assert finding(alexnet, "missing_ranks").value("missing_ranks") == 6


def test_alexnet_bytes_on_the_links(alexnet, traces):
    for rank in alexnet.ranks:
        assert sum(link[2] for link in rank.links) == 10 * int(rows_of(traces)[0]["bytes_on_links"])


def test_alexnet_arrivals(alexnet, traces):
    first, second = (rank.communication_events for rank in alexnet.ranks)
    for row in expected(traces, "ms_alexnet_dp2")["cross_rank"]:
        at = row["step"] - 1
        start = (second.start[at] - first.start[at]) / 1e3
        end = (second.end[at] - first.end[at]) / 1e3
        assert start == pytest.approx(row["allreduce_start_rank1_minus_rank0_us"], abs=0.02)
        assert end == pytest.approx(row["allreduce_end_rank1_minus_rank0_us"], abs=0.02)
    late = finding(alexnet, "late_arrival")
    assert late.value("latest_rank") == 0
    assert late.value("worst_wait_ms") == pytest.approx(9.93035, abs=1e-4)
    assert "step 1" in next(item.where for item in late.evidence if item.name == "worst_wait_ms")


def test_alexnet_clocks_cannot_be_told_apart(alexnet):
    """Ends of the all-reduce agree within -87..+88 µs: an offset of 31 µs means nothing and isn't applied."""
    offset = alexnet.skew.offsets[1]
    assert abs(offset.offset_ns) < offset.uncertainty_ns
    assert 88_000 < offset.uncertainty_ns < 200_000
    assert alexnet.skew.correction_ns(1) == 0


def test_marey_offsets(marey, traces):
    truth = expected(traces, "ms_marey_pp2_4dev")["clock_offset_us"]
    edges = {
        frozenset((edge.rank, edge.reference)): edge for edge in marey.skew.edges if edge.method == "messages"
    }
    for pair, name in (((0, 2), "device0_minus_device2"), ((1, 3), "device1_minus_device3")):
        edge = edges[frozenset(pair)]
        edge = edge if edge.rank == pair[0] else edge.reversed()
        middle = sum(truth[name]) / 2 * 1e3
        assert abs(edge.offset_ns - middle) <= edge.uncertainty_ns
        assert truth[name][0] * 1e3 >= edge.offset_ns - edge.uncertainty_ns
        assert truth[name][1] * 1e3 <= edge.offset_ns + edge.uncertainty_ns
        assert edge.uncertainty_ns < 1_000
    assert edges[frozenset((0, 2))].offset_ns == pytest.approx(233_033_000, abs=500) or edges[
        frozenset((0, 2))
    ].offset_ns == pytest.approx(-233_033_000, abs=500)
    # On corrected clocks no message is received before it is sent, within the uncertainty.
    assert marey.skew.correction_ns(2) == pytest.approx(-233_033_105, abs=400)


def test_marey_collectives_and_stages(marey, traces):
    truth = expected(traces, "ms_marey_pp2_4dev")
    names = marey.recording.names.texts
    for rank in marey.ranks:
        kinds = [collective_of(names[number]) for number in rank.communication_events.name]
        for name, kind in (("AllReduce", "all_reduce"), ("Send", "send"), ("Receive", "receive")):
            assert kinds.count(kind) == truth["collectives"][name][rank.rank]
    low, high = truth["within_stage_allreduce_end_diff_us"]
    inside = [edge for edge in marey.skew.edges if edge.method == "collective ends"]
    for edge in inside:
        assert low <= abs(edge.offset_ns) / 1e3 <= high
    assert marey.recording.stages == {0: (0, 1), 1: (2, 3)}
    # Its minT lies 8.7 s before the first operator.
    assert all(rank.start_ns > 182_900_000_000 for rank in marey.ranks)


def test_marey_idle_time_is_unknown_not_zero(marey):
    """Its file keeps one occurrence of each operator: 97 % without an operator isn't host-bound."""
    assert "host_bound" not in rules(marey)
    assert ("host_bound", "free_share") in {(item.rule, item.lacks) for item in marey.verdicts.undecided}


def test_cluster_mindinsights_published_answers(cluster, traces):
    truth = expected(traces, "ms_cluster_pp2_4rank")
    slow = finding(cluster, "slow_step_interval")
    assert slow.summary.startswith(f"Rank {truth['slow_rank']['rank']}:")
    assert slow.value("interval_ms") == pytest.approx(truth["slow_rank"]["step_interval_ms"], abs=1e-4)
    assert slow.value("interval_over_average") == pytest.approx(truth["slow_rank"]["over_average"], abs=1e-4)
    between = finding(cluster, "between_stage_communication")
    assert between.value("receive_alone_share") == pytest.approx(
        truth["between_stage_comm"]["fraction"], abs=1e-4
    )
    within = finding(cluster, "within_stage_communication", f"Stage {truth['within_stage_comm']['stage']}")
    assert within.value("collective_alone_share") == pytest.approx(
        truth["within_stage_comm"]["fraction"], abs=1e-3
    )
    flops = finding(cluster, "flops_imbalance")
    assert flops.summary.startswith(f"Stage {truth['flops_imbalance']['stage']}:")
    assert flops.value("flops_over_average") == pytest.approx(
        truth["flops_imbalance"]["over_average"], abs=1e-4
    )
    assert flops.value("mflops") == pytest.approx(truth["flops_imbalance"]["value"], abs=0.01)
    for row, compute, alone in zip(
        sorted(cluster.recording.pipelines, key=lambda row: row.rank),
        truth["compute_ms"],
        truth["communication_alone_ms"],
        strict=True,
    ):
        assert row.computing_ns / 1e6 == pytest.approx(compute, rel=5e-3)
        assert row.communication_alone_ns / 1e6 == pytest.approx(alone, rel=5e-3)


def test_cluster_the_slow_link_is_named_as_an_artefact(cluster, traces):
    truth = expected(traces, "ms_cluster_pp2_4rank")["slow_link"]
    found = finding(cluster, "slow_link_artefact", f"Link {truth['link']}")
    assert truth["type"] in found.summary
    assert found.value("stated_below_average") == pytest.approx(truth["below_average"], abs=1e-4)
    assert found.value("stated_bandwidth_gb_s") == pytest.approx(truth["value"] / 1e6, rel=1e-6)
    assert abs(found.value("bandwidth_below_peers")) < 0.02  # the same speed, size by size
    assert 10 < found.value("mean_message_kb") < 20
    assert "slow_link" not in rules(cluster)


def test_cluster_house_rule_beside_the_ratio(cluster):
    ratios = [
        found.value("stage_compute_over_communication")
        for found in cluster.findings
        if found.rule == "stage_compute_over_communication"
    ]
    assert ratios == [pytest.approx(0.09, abs=0.005), pytest.approx(1.24, abs=0.01)]
    assert finding(cluster, "pipeline_imbalance").value("heaviest_stage") == 2


def test_single_run_total_time_equals_the_summary(traces):
    from trainer.timeline.run import analyse

    analysis = analyse(traces / "ms_single_run1")
    summary = json.loads((traces / "ms_single_run1" / "timeline_summary_1.json").read_text())
    operators = sum(
        int(part.duration.sum()) for key, part in analysis.ranks[0].tracks.items() if key[0] == "pid 1"
    )
    assert operators / 1e3 == pytest.approx(summary["total_time"], abs=0.1)
    # Operators were recorded for the first steps only: later steps are unknown, not idle.
    known = len(all_step_parts(analysis.ranks[0]))
    assert 5 < known < 30 and len(analysis.ranks[0].steps) == 322


def test_trace_view_with_text_times(traces):
    from trainer.timeline.run import analyse

    analysis = analyse(traces / "mstt_trace_view")
    rank = analysis.ranks[0]
    own = rank.events_of(Role.PROFILER_COMPUTE)
    theirs = intervals.union(own.start, own.end)
    assert (
        abs(intervals.total(rank.computing) - intervals.total(theirs)) <= 2_500
    )  # two of its rows are shorter by 1 µs
    assert np.all(own.start > 1_704_161_511_000_000_000)
    assert rules(analysis) == ["host_bound"]
    assert analysis.recording.quarantine.count("device_before_launch") == 2


def test_kernel_tables_of_two_generations(traces):
    from trainer.timeline.run import analyse

    new = analyse(traces / "mstt_kernel_details" / "kernel_details_2025_bf16.csv")
    table = new.ranks[0].kernels[0]
    assert int(table.start_ns[0]) == 1_736_413_971_558_972_912  # a text with a tab behind it
    assert table.bandwidth_ratio[0] == 0.964 and table.mac_ratio[0] == 0.824
    frame = pd.read_csv(traces / "mstt_kernel_details" / "kernel_details_2025_bf16.csv")
    cube = frame["Accelerator Core"].str.startswith(("AI_CORE", "MIX_AIC"))
    ratio = frame["aic_mte2_ratio"].where(cube, frame[["aiv_mte2_ratio", "aiv_mte3_ratio"]].max(axis=1))
    weights = frame["Duration(us)"]
    assert new.fact("bandwidth_utilisation") == pytest.approx(
        (ratio * weights).sum() / weights.sum(), abs=1e-6
    )
    old = analyse(traces / "mstt_kernel_details" / "kernel_details_2023_hccl.csv")
    assert np.isnan(old.ranks[0].kernels[0].bandwidth_ratio).all()
    assert old.fact("bandwidth_bound_share") is None
    assert len(old.ranks[0].communication_events) == 19
    assert "communication_bound" in rules(old)


def test_kineto_ranks_of_a_large_job(traces):
    from trainer.timeline.run import analyse

    analysis = analyse(traces / "hta_gpu")
    assert analysis.world.size == 128 and analysis.world.present == (0, 1)
    assert len(analysis.world.missing) == 126
    assert [step.step for step in analysis.ranks[0].steps] == [551, 552]
    assert "recordings of different times" in analysis.notes()[0]
    assert analysis.skew.unknown == (1,)  # no collective is found on both
    # HolisticTraceAnalysis 0.5.0 counts as much compute time on this file, to the microsecond.
    assert intervals.total(analysis.ranks[0].computing) == 210_320_000
