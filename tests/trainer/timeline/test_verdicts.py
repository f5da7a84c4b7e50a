"""Verdicts on facts with known answers: a cluster report, planted faults, and what can't be known."""

import csv
import json

import pytest

from tests.trainer.timeline.synthetic import communication, kernel, step, write_run, write_trace
from trainer.findings import SEVERITIES
from trainer.timeline.facts.subject import Fact, Subject
from trainer.timeline.rulebook import rulebook
from trainer.timeline.run import analyse
from trainer.timeline.verdicts import judge


def rules(analysis):
    return [finding.rule for finding in analysis.findings]


def finding(analysis, rule):
    return next(found for found in analysis.findings if found.rule == rule)


def cluster_report(path, free_shares, step_us=1_000_000.0):
    """cluster_step_trace_time.csv of ranks with these free shares; computing is 4.7 % of the step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                "Step",
                "Type",
                "Index",
                "Computing",
                "Communication(Not Overlapped)",
                "Overlapped",
                "Communication",
                "Free",
                "Stage",
                "Bubble",
                "Communication(Not Overlapped and Exclude Receive)",
                "Preparing",
            ]
        )
        for rank, share in enumerate(free_shares):
            computing, free = 0.047 * step_us, share * step_us
            exposed = step_us - computing - free
            row = [computing, exposed, 0.0, exposed, free, step_us, 0.0, exposed, 0.0]
            writer.writerow(["", "rank", rank, *row])
        writer.writerow(["", "stage", "(0, 1, 2, 3, 4, 5, 6, 7)", *row])
    return path


def test_a_cluster_that_is_free_half_of_the_time_is_host_bound_not_all_reduce_bound(tmp_path):
    shares = [0.52, 0.55, 0.60, 0.64, 0.70, 0.75, 0.81, 0.87]
    analysis = analyse(cluster_report(tmp_path / "cluster_step_trace_time.csv", shares).parent)
    assert rules(analysis) == ["host_bound"]
    found = finding(analysis, "host_bound")
    assert found.value("free_share") == pytest.approx(sum(shares) / 8)
    assert found.value("compute_share") == pytest.approx(0.047)
    assert found.value("exposed_share") > 0.2  # enough for a communication verdict, had it not come second
    assert {rival.rule for rival in found.rivals} >= {"data_bound", "lost_device_data"}
    assert analysis.world.size == 8 and analysis.world.missing == ()


def test_the_same_cluster_without_idle_time_is_communication_bound(tmp_path):
    analysis = analyse(cluster_report(tmp_path / "cluster_step_trace_time.csv", [0.05] * 8).parent)
    assert rules(analysis) == ["communication_bound", "not_overlapped"]
    assert ("all_reduce_bound", "all_reduce_share") in {
        (u.rule, u.lacks) for u in analysis.verdicts.undecided
    }


def test_a_slow_rank_is_the_one_with_the_shortest_communication(tmp_path):
    analysis = analyse(write_run(tmp_path / "run", 8, slow_rank=5))
    found = finding(analysis, "load_imbalance")
    assert found.value("slow_rank") == 5
    assert found.value("slow_rank_vote") == 1.0
    assert found.value("slow_rank_extra_compute_ms") > 0.3
    assert rules(analysis).index("load_imbalance") < rules(analysis).index("all_reduce_bound")
    holds = next(r for r in finding(analysis, "all_reduce_bound").rivals if r.rule == "load_imbalance")
    assert "holds too" in holds.because


def test_equal_ranks_are_not_imbalanced(tmp_path):
    assert "load_imbalance" not in rules(analyse(write_run(tmp_path / "run", 8)))


def test_no_cross_rank_verdict_below_the_uncertainty_of_the_clocks(tmp_path):
    """Ends of the collectives scatter by ± 400 µs: a rank that is 300 µs late can't be told."""
    for rank in (0, 1):
        events = []
        for number in range(6):
            begin = number * 10_000.0
            jitter = 800.0 * (number % 2) if rank else 0.0
            late = 300.0 if rank else 0.0
            events += [kernel(f"MatMul-op{number}", begin, 4000 + late), step(number + 1, begin, 9_900)]
            events.append(communication("hcom_allReduce__1_0", begin + 4000 + late, 4000 + jitter - late))
        write_trace(tmp_path / f"rank_{rank}" / "trace_view.json", events)
    analysis = analyse(tmp_path)
    assert analysis.skew.offsets[1].uncertainty_ns >= 400_000
    assert "late_arrival" not in rules(analysis)
    assert analysis.fact("worst_wait_over_uncertainty") < 1


def test_a_slow_link_is_named_by_its_size_of_message(tmp_path):
    rows = []
    for rank in range(4):
        ops = {}
        for number in range(10):
            link, slow = f"{rank}-{(rank + 1) % 4}", rank == 2
            big = [0.5 * (2 if slow else 1), 10_000.0, 1.0]
            ops[f"op{number}"] = ["-", 1.0, 0.0, {link: {"RDMA": big}}]
            ops[f"small{number}"] = ["-", 1.0, 0.0, {link: {"RDMA": [0.004, 4.0, 1.0]}}]
        rows.append((rank, ops))
    for rank, ops in rows:
        with (tmp_path / f"hccl_raw_{rank}.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(
                ["step_num", "communication_cost", "wait_cost", "link_info", "communication_operator_cost"]
            )
            writer.writerow(["-", 1.0, 0.0, json.dumps({}), json.dumps(ops)])
    analysis = analyse(tmp_path)
    slow = [found for found in analysis.findings if found.rule == "slow_link"]
    assert [found.summary.split(" over")[0] for found in slow] == ["Link 2-3 (rank 2)"]
    assert slow[0].value("bandwidth_below_peers") == pytest.approx(0.5)
    assert slow[0].value("bandwidth_gb_s") == pytest.approx(10.0)


COMMUNICATION = {
    "Communication Time Info": {
        "Start Timestamp(us)": 1713174287407957.0,
        "Elapse Time(ms)": 0.06086,
        "Transit Time(ms)": 0.00126,
        "Wait Time(ms)": 0.01494,
        "Synchronization Time(ms)": 0.00714,
        "Idle Time(ms)": 0.04466,
    },
    "Communication Bandwidth Info": {
        "SDMA": {
            "Transit Size(MB)": 8.0,
            "Transit Time(ms)": 1.0,
            "Size Distribution": {"0.5": [16, 1.0]},
        }
    },
}


def test_communication_json_of_a_rank_and_of_a_cluster(tmp_path):
    fields = COMMUNICATION
    own = {"step12": {"collective": {"hcom_allReduce__1@77": fields, "Total Op Info": fields}, "p2p": {}}}
    folder = tmp_path / "own" / "rank_3"
    folder.mkdir(parents=True)
    (folder / "communication.json").write_text(json.dumps(own))
    analysis = analyse(tmp_path / "own")
    [row] = analysis.recording.collectives
    assert (row.rank, row.group, row.operation) == (3, "77", "hcom_allReduce__1")
    assert (row.start_ns, row.elapse_ns, row.transit_ns) == (1713174287407957000, 60860, 1260)
    small = finding(analysis, "small_packets")
    assert small.value("small_packet_share") == 1.0 and small.value("small_packets") == 16
    slow = json.loads(json.dumps(fields))
    slow["Communication Time Info"] |= {"Elapse Time(ms)": 100.0, "Wait Time(ms)": 95.0}
    cluster = {"(0, 1)": {"hcom_allReduce__1": {"0": fields, "1": slow}}}
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "cluster_communication.json").write_text(json.dumps(cluster))
    waiting = finding(analyse(tmp_path / "waiting"), "collective_wait")
    assert waiting.value("least_waiting_rank") == 0
    assert waiting.value("collective_wait_share") == pytest.approx(95.01494 / 100.06086, abs=1e-6)
    # A ratio of 1 over a wait of 0.2 µs is no finding.
    assert "collective_wait" not in rules(analysis)
    cluster = {"(0, 1)": {"hcom_allReduce__1": {"0": fields, "1": fields}}}
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "cluster_communication.json").write_text(json.dumps(cluster))
    assert [row.rank for row in analyse(tmp_path / "cluster").recording.collectives] == [0, 1]


HEADER = "Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Stream ID,Input Shapes,aic_mac_ratio,aic_mte2_ratio,aiv_mte2_ratio"


def kernel_table(path, kernels):
    """(type, core, µs, shapes, mac, mte2 on the cube, mte2 on a vector core, state) in order of time."""
    rows, at = [HEADER], 1_700_000_000_000_000.0
    for number, (kind, core, us, shapes, mac, mte, vec, state) in enumerate(kernels):
        rows.append(
            f'1,{kind}{number},{kind},{state},{core},{at:.3f}\t,{us},0,2,"""{shapes}""",{mac},{mte},{vec}'
        )
        at += us + 1
    path.write_text("\n".join(rows) + "\n")
    return path


CUBE, VECTOR = "AI_CORE", "AI_VECTOR_CORE"


def test_memory_bandwidth_bound(tmp_path):
    kernels = [
        ("Add", VECTOR, 90, "8,8", 0, 0, 0.85, "static"),
        ("MatMul", CUBE, 40, "8,8", 0.9, 0.97, 0, "static"),
    ]
    found = finding(
        analyse(kernel_table(tmp_path / "kernel_details.csv", kernels * 5)), "memory_bandwidth_bound"
    )
    assert found.value("bandwidth_bound_share") == pytest.approx(90 / 130, abs=1e-6)
    assert found.value("compute_bound_share") == pytest.approx(
        40 / 130, abs=1e-6
    )  # mac comes first: it isn't waiting


def test_no_counters_no_verdict(tmp_path):
    kernels = [("Add", VECTOR, 90, "8,8", "N/A", "N/A", "N/A", "static")] * 4
    analysis = analyse(kernel_table(tmp_path / "kernel_details.csv", kernels))
    assert "memory_bandwidth_bound" not in rules(analysis)
    assert ("memory_bandwidth_bound", "bandwidth_bound_share") in {
        (u.rule, u.lacks) for u in analysis.verdicts.undecided
    }


def test_operator_black_holes(tmp_path):
    plain = (0, 0, 0, "static")
    kernels = [
        ("MatMulV2", CUBE, 50, "64,64", *plain),
        ("BiasAdd", VECTOR, 10, "64", *plain),
        ("Gelu", VECTOR, 10, "64", *plain),
    ] * 3
    kernels += [("GatherV2", VECTOR, 20, "9", *plain), ("ScatterNdAdd", VECTOR, 30, "9", *plain)]
    kernels += [("SoftmaxV2", VECTOR, 60, "4,151936", *plain), ("SoftmaxV2", VECTOR, 5, "4,64", *plain)]
    kernels += [("DynamicGRUV2", CUBE, 40, "4,64", *plain)]
    kernels += [("Transpose", VECTOR, 5, f"{n},64", 0, 0, 0, "dynamic") for n in range(9)]
    analysis = analyse(kernel_table(tmp_path / "kernel_details.csv", kernels))
    whole = 3 * 70 + 50 + 65 + 40 + 45
    assert finding(analysis, "operator_gather_scatter").value("gather_scatter_share") == pytest.approx(
        50 / whole, abs=1e-6
    )
    softmax = finding(analysis, "operator_large_softmax")
    assert softmax.value("large_softmax_share") == pytest.approx(60 / whole, abs=1e-6)
    assert softmax.value("softmax_axis") == 151936
    assert finding(analysis, "operator_recurrent").value("recurrent_share") == pytest.approx(
        40 / whole, abs=1e-6
    )
    assert finding(analysis, "operator_unfused_gelu").value("unfused_gelu_count") == 3
    recompiles = finding(analysis, "operator_recompiles")
    assert recompiles.value("shapes_of_one_operator") == 9
    assert recompiles.value("dynamic_share") == pytest.approx(45 / whole, abs=1e-6)


def test_healthy_operators_are_no_black_holes(tmp_path):
    kernels = [
        ("MatMulV2", CUBE, 50, "64,64", 0, 0, 0, "static"),
        ("GatherV2", VECTOR, 1, "9", 0, 0, 0, "static"),
    ] * 9
    analysis = analyse(kernel_table(tmp_path / "kernel_details.csv", kernels))
    assert not [rule for rule in rules(analysis) if rule.startswith("operator_")]


def test_an_empty_data_queue(tmp_path):
    write_trace(tmp_path / "rank_0" / "trace_view.json", [kernel("MatMul-op1", 0, 900), step(1, 0, 1000)])
    rows = [f"1 64 {n} {0 if n % 4 else 3} {n}" for n in range(40)]
    (tmp_path / "device_queue_profiling_0.txt").write_text("\n".join(rows))
    found = finding(analyse(tmp_path), "data_bound")
    assert found.value("queue_empty_share") == 0.75


def test_fragmented_memory(tmp_path):
    rows = ["Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device"]
    rows += [f"APP,{1_700_000_000_000_000 + n},{20_000 + n},{30_000},NPU:0" for n in range(5)]
    write_trace(tmp_path / "rank_0" / "trace_view.json", [kernel("MatMul-op1", 0, 900), step(1, 0, 1000)])
    (tmp_path / "memory_record.csv").write_text("\n".join(rows))
    assert finding(analyse(tmp_path), "fragmentation").value("reserved_over_allocated") == pytest.approx(
        30_000 / 20_004, abs=1e-6
    )


def test_fragmented_memory_is_that_of_one_ranks_pool(tmp_path):
    """The peaks of different ranks, or of different components, say nothing about each other."""
    header = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device"
    for rank, rows in enumerate((["PTA,1,50000,52000,NPU:0", "GE,2,1,4,NPU:0"], ["PTA,1,20000,40000,NPU:1"])):
        folder = tmp_path / f"rank_{rank}"
        write_trace(folder / "trace_view.json", [kernel("MatMul-op1", 0, 900), step(1, 0, 1000)])
        (folder / "memory_record.csv").write_text("\n".join([header, *rows]))
    found = finding(analyse(tmp_path), "fragmentation")
    assert found.value("reserved_over_allocated") == 2.0
    assert found.evidence[0].where.startswith("rank 1, PTA: ")


def run_subject(**facts):
    return Subject("run", "run", {name: Fact(value) for name, value in facts.items()})


def test_an_unknown_fact_leaves_a_rule_undecided_and_never_false():
    verdicts = judge([run_subject(free_share=0.9)])
    assert ("host_bound", "free_ms") in {(u.rule, u.lacks) for u in verdicts.undecided}
    assert verdicts.findings == ()
    # A condition that fails decides, whatever else is unknown.
    assert "host_bound" not in {u.rule for u in judge([run_subject(free_share=0.1)]).undecided}


@pytest.mark.parametrize("rule", rulebook().rules, ids=lambda rule: rule.rule)
def test_every_rule_can_hold_and_can_fail(rule):
    """Facts just on the right side of each threshold make a finding; each of them just on the wrong side unmakes it."""
    good, bad = {}, {}
    for condition in rule.when:
        for name, sign in (("above", 1), ("at_least", 1), ("below", -1), ("at_most", -1)):
            threshold = getattr(condition, name)
            if threshold is not None:
                good[condition.fact] = threshold + sign * 1e-6
                bad[condition.fact] = threshold - sign * 1e-6
    filler = {name: good.get(name, 0.0) for name in rule.facts} | good
    subject = Subject(rule.scope, "thing 1", {name: Fact(value) for name, value in filler.items()})
    found = [item for item in judge([subject]).findings if item.rule == rule.rule]
    assert len(found) == 1 and found[0].action and found[0].severity in SEVERITIES
    assert "{" not in found[0].summary and found[0].value("source")
    for condition in rule.when:
        facts = filler | {condition.fact: bad[condition.fact]}
        other = Subject(rule.scope, "thing 1", {name: Fact(value) for name, value in facts.items()})
        assert rule.rule not in {item.rule for item in judge([other]).findings}


def test_all_facts_of_the_rules_are_measured_somewhere(alexnet, cluster, marey, tmp_path, traces):
    """A misspelt fact would leave its rule undecided for ever."""
    kernels = [("Add", VECTOR, 90, "8,8", 0, 0, 0.85, "static")] * 3
    (tmp_path / "k").mkdir()
    analyses = [
        alexnet,
        cluster,
        marey,
        analyse(kernel_table(tmp_path / "k" / "kernel_details.csv", kernels).parent),
    ]
    analyses.append(analyse(write_run(tmp_path / "run", 3)))
    analyses.append(analyse(traces / "ms_profiler_small"))
    rows = [
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device",
        "APP,1700000000000000,1,2,NPU:0",
    ]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "memory_record.csv").write_text("\n".join(rows))
    write_trace(tmp_path / "m" / "trace_view.json", [kernel("MatMul-op1", 0, 900)])
    analyses.append(analyse(tmp_path / "m"))
    (tmp_path / "c").mkdir()
    waiting = {"(0, 1)": {"hcom_allReduce__1": {"0": COMMUNICATION, "1": COMMUNICATION}}}
    (tmp_path / "c" / "cluster_communication.json").write_text(json.dumps(waiting))
    analyses.append(analyse(tmp_path / "c"))
    measured = {(s.scope, name) for analysis in analyses for s in analysis.subjects for name in s.facts}
    for rule in rulebook().rules:
        for name in {condition.fact for condition in rule.when} | set(rule.facts):
            assert (rule.scope, name) in measured, (rule.rule, name)


def test_a_kernel_table_beside_its_trace_counts_no_time_twice(tmp_path):
    kernels = [("Add", VECTOR, 90, "8,8", 0, 0, 0.85, "static")] * 10
    kernel_table(tmp_path / "kernel_details.csv", kernels)
    # The trace rounds another way, as real pairs do.
    write_trace(tmp_path / "trace_view.json", [kernel(f"Add{n}", 91 * n + 0.001, 90) for n in range(10)])
    analysis = analyse(tmp_path)
    [rank] = analysis.ranks
    assert int((rank.computing[:, 1] - rank.computing[:, 0]).sum()) == 10 * 90_001
    assert analysis.recording.quarantine.rows() == []
    assert finding(analysis, "memory_bandwidth_bound").value("bandwidth_bound_share") == 1.0
