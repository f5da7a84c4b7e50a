"""Public reports about HCCL, the environment and memory on Ascend: the tools name what the threads found out.

The lines here are written after the formats of those reports, with the numbers that decide.
"""

from pathlib import Path

import pytest

from trainer.diagnosis.distributed import diagnose_distributed
from trainer.diagnosis.environment import check_environment
from trainer.diagnosis.incidents import find_incidents
from trainer.diagnosis.out_of_memory import diagnose_out_of_memory
from trainer.diagnosis.plog import read_log

HCCL = "[ERROR] HCCL({pid},python3):{time} [x.cc:1] [{pid}]{text}"


def hccl(time: str, text: str, pid: int = 1) -> str:
    return HCCL.format(pid=pid, time=time, text=text)


def write(folder: Path, **logs: list[str]) -> Path:
    for name, lines in logs.items():
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    return folder


def test_d24_a_taken_port_is_the_cause_and_not_the_timeout_120_s_later(tmp_path):
    """vllm-ascend 1955: "Getting socket times out" while port 16666 was bound."""
    lines = [
        hccl(
            "2025-07-23-03:47:57.070.463",
            "socket type[1], listen on ip[10.0.0.1] and specific port[16666] fail.",
        ),
        hccl("2025-07-23-03:47:57.070.466", "[ServerInit]call trace: hcclRet -> 19"),
        hccl("2025-07-23-03:49:57.177.194", "wait socket establish timeout, role[1] rank[12] timeout[120]"),
        hccl("2025-07-23-03:49:57.177.265", "[LinksEstablishCompleted] is failed. ret[9]."),
    ]
    first = diagnose_distributed(write(tmp_path, plog=lines)).findings[0]
    assert first.rule == "port_in_use" and "16666" in first.summary
    assert first.value("seconds_until_the_timeout") == 120.107 and first.value("connect_timeout") == 120
    assert "socket_timeout" in {rival.rule for rival in first.rivals}


def test_d25_a_line_without_its_year_keeps_its_place(tmp_path):
    """vllm-ascend 3162: EI0009 at 20:59:48 with the year, vLLM's line at 20:59:57 without."""
    lines = [
        "(EngineCore pid=2221630) ERROR 09-24 20:59:57 [core.py:790] Invocation of collective_rpc failed",
        "[rank1]: EI0009: [PID: 2225827] 2025-09-24-20:59:48.119.066 Transport init error. Reason: createLink "
        "para:rank[1]-localUserrank[1]-localIpAddr[172.16.0.114], dst_rank[0]-remoteUserrank[0]-remote_ip_addr[172.16.0.114]",
    ]
    write(tmp_path, run=lines)
    incidents = find_incidents([read_log(tmp_path / "run.log")])
    assert [item.failure.rule for item in incidents] == ["transport_init", "other_error"]
    assert (incidents[1].when - incidents[0].when).total_seconds() == pytest.approx(8.880934)
    assert incidents[1].line.year_inferred and incidents[1].when.year == 2025


def test_d26_the_silent_ranks_log_is_asked_for(tmp_path):
    """vllm-ascend 486: EI0006, the remote rank did not send."""
    lines = [
        "[rank1]: RuntimeError: InnerRunOpApi: OPS function error: HcclAllreduce, error code is 6",
        "[rank1]: [ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api failed.",
        "[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank "
        "did not send the data in time.",
    ]
    report = diagnose_distributed(
        write(tmp_path, worker_1=lines, worker_0=["2025-04-08 18:07:19,000 - INFO - step"])
    )
    assert report.findings[0].rule == "remote_rank_silent"
    silent = next(finding for finding in report.findings if finding.rule == "silent_ranks")
    assert silent.value("ranks") == "0" and "py-spy" in silent.action


def test_d27_a_timeout_on_every_rank_is_compared_with_the_connect_timeout(tmp_path):
    """vllm-ascend 5461, 9447: all ranks time out within seconds, TLS states differ."""
    line = "[PID: {0}] 2025-12-29-03:16:{0}.787.356 Get_Socket_Timeout(EI0006): Getting socket times out."
    logs = {f"worker_{rank}": [line.format(15 + rank)] for rank in range(4)}
    report = diagnose_distributed(write(tmp_path, **logs))
    link = report.findings[1]
    assert (link.rule, link.value("spread_s"), link.value("timeout_s")) == ("link_or_missing_peer", 3.0, 120)
    assert "tls" in link.action


@pytest.mark.parametrize(("late_s", "rule"), [(300, "late_start"), (30, "link_or_missing_peer")])
def test_d28_a_longer_timeout_is_advised_only_on_a_measured_late_start(tmp_path, late_s, rule):
    """afd-plugin 229: failures until HCCL_CONNECT_TIMEOUT=900."""
    minute, second = divmod(late_s, 60)
    logs = {
        "worker_0": [
            "2026-08-12 10:00:00,000 - INFO - start",
            hccl("2026-08-12-10:10:00.000.000", "EI0006 timeout[120]"),
        ],
        "worker_1": [
            f"2026-08-12 10:{minute:02d}:{second:02d},000 - INFO - start",
            hccl("2026-08-12-10:10:00.000.000", "EI0006 timeout[120]", 2),
        ],
    }
    findings = diagnose_distributed(write(tmp_path, **logs)).findings
    assert findings[1].rule == rule
    assert ("HCCL_CONNECT_TIMEOUT above 300.0" in findings[1].action) == (rule == "late_start")


def test_d29_a_transport_error_names_its_peer(tmp_path):
    """vllm-ascend 10591, 9872: EI0009 with the ranks and addresses of both sides."""
    text = (
        "[RunFailed]Transport init error! createLink para:rank[7]-localUserrank[7]-localIpAddr[80.5.5.39/7], "
        "remoteRank[15]-remoteUserrank[15]-remoteIpAddr[80.5.5.67/7], machineType[0]"
    )
    first = diagnose_distributed(write(tmp_path, plog=[hccl("2026-06-17-02:21:43.853.333", text)])).findings[
        0
    ]
    assert (first.rule, first.value("process"), first.value("peer_rank")) == ("transport_init", "rank 7", 15)
    assert (first.value("local_address"), first.value("peer_address")) == ("80.5.5.39/7", "80.5.5.67/7")


def test_d30_interleaved_processes_are_told_apart(tmp_path):
    """vllm-ascend 1702, 672, 1127, 674, verl 849: blocks of several processes mixed in one file."""
    lines = [
        hccl("2026-01-01-10:00:05.000.000", "wait socket establish timeout, timeout[120]", 11),
        hccl(
            "2026-01-01-10:00:00.000.000", "socket type[1], listen on ip[1] and specific port[16666] fail", 22
        ),
        hccl("2026-01-01-10:00:05.100.000", "call trace: hcclRet -> 9", 11),
        hccl("2026-01-01-10:00:00.100.000", "call trace: hcclRet -> 19", 22),
    ]
    incidents = find_incidents([read_log(write(tmp_path, run=lines) / "run.log")])
    assert [(item.line.pid, item.failure.rule, len(item.lines)) for item in incidents] == [
        (22, "port_in_use", 2),
        (11, "socket_timeout", 2),
    ]


def npu(asked: str, total: float, allocated: float, free: str, reserved: float) -> str:
    return (
        f"RuntimeError: NPU out of memory. Tried to allocate {asked} (NPU 0; {total} GiB total capacity; {allocated} GiB "
        f"already allocated; {allocated} GiB current active; {free} free; {reserved} GiB reserved in total by PyTorch)"
    )


@pytest.mark.parametrize(
    ("report", "text", "label"),
    [
        ("vllm-ascend 19", npu("22.00 MiB", 60.97, 10.24, "19.52 MiB", 10.65), "other_process"),
        ("vllm-ascend 1617", npu("4.50 GiB", 60.96, 52.87, "2.77 GiB", 56.89), "fragmentation"),
        ("vllm-ascend 1987", npu("3.47 GiB", 60.97, 58.92, "1.66 GiB", 58.95), "capacity"),
        ("vllm-ascend 5020", npu("2.00 GiB", 60.96, 55.91, "1.80 GiB", 58.73), "fragmentation"),
        ("vllm-ascend 1127", npu("30.00 MiB", 60.96, 60.34, "14.24 MiB", 60.60), "capacity"),
        ("vllm-ascend 3357", npu("11.50 GiB", 60.97, 54.10, "4.64 GiB", 54.27), "capacity"),
        ("sglang 29838", npu("72.00 MiB", 61.27, 56.05, "5.04 MiB", 58.39), "fragmentation"),
        ("LlamaFactory 5491", npu("386.00 MiB", 60.97, 59.57, "16.54 MiB", 60.06), "capacity"),
        ("CogVideo 63", npu("35.31 GiB", 60.97, 26.13, "33.81 GiB", 26.61), "capacity"),
        ("TouchNet 100", npu("5.03 GiB", 60.96, 49.47, "1.32 GiB", 57.55), "fragmentation"),
        (
            "MindAct 1761",
            "TotalUsedMemStatistics : 29356337664 plus TotalUsedByEventMemStatistics : 0 and plus alloc size : 301990400 is more than total mem size : 29464985600.",
            "pool_limit",
        ),
        ("Helios 62", "EL0004 Call rtMalloc fail, purpose: page caching, type = 2, size:3221291008, device_id:0", "device_allocator"),
    ],
)  # fmt: skip
def test_d31_twelve_messages_are_labelled_by_their_numbers(report, text, label):
    assert diagnose_out_of_memory(text)[0].rule == label, report


def test_d32_a_communication_buffer_that_is_too_small_says_how_much_it_needs():
    """vllm-ascend PR 6131: fused communication operators check HCCL_BUFFSIZE."""
    (finding,) = diagnose_out_of_memory(
        "HCCL_BUFFSIZE is too SMALL, NEEDED_HCCL_BUFFSIZE(x) = 812MB, HCCL_BUFFSIZE=200MB."
    )
    assert (finding.rule, finding.value("need_mb"), finding.value("have_mb")) == (
        "hccl_buffer_too_small",
        812,
        200,
    )


def test_d33_the_environment_report_names_variable_value_and_rule():
    """mindyolo 236, 416; LlamaFactory 8306: hangs that were mistakes in the environment."""
    (finding,) = check_environment(
        {"HCCL_CONNECT_TIMEOUT": "10"},
        {"mindformers": "1.7.0", "mindspore": "2.7.1", "cann": "8.3.RC1", "driver": "25.3.RC1"},
    )
    assert (finding.value("variable"), finding.value("value")) == ("HCCL_CONNECT_TIMEOUT", "10")
    assert "120 to 7200" in finding.summary and "CANN" in str(finding.value("rule"))
