"""Classes of out-of-memory messages, by arithmetic on their numbers."""

import time

import pytest

from trainer.diagnosis.memory_messages import read_messages
from trainer.diagnosis.out_of_memory import diagnose_out_of_memory

GIB = 2**30


def message(asked: str, total: float, allocated: float, free: str, reserved: float) -> str:
    return (
        f"RuntimeError: NPU out of memory. Tried to allocate {asked} (NPU 3; {total} GiB total capacity; "
        f"{allocated} GiB already allocated; {allocated} GiB current active; {free} free; "
        f"{reserved} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
    )


def rule(text: str) -> str:
    return diagnose_out_of_memory(text)[0].rule


def test_the_numbers_of_a_message():
    (found,) = read_messages(message("512.00 MiB", 64, 40.5, "1.25 GiB", 48))
    assert (found.requested, found.total, found.free) == (GIB // 2, 64 * GIB, GIB * 5 // 4)
    assert (found.idle, found.other, found.device) == (int(7.5 * GIB), int(14.75 * GIB), 3)


def test_the_newer_form_gives_the_same_numbers():
    old = message("2.00 GiB", 64, 50, "1.00 GiB", 60)
    new = (
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB. NPU 3 has a total capacity of "
        "64.00 GiB of which 1.00 GiB is free. Of the allocated memory 50.00 GiB is allocated by PyTorch, and "
        "10.00 GiB is reserved by PyTorch but unallocated."
    )
    (one,), (other,) = list(read_messages(old)), list(read_messages(new))
    assert (one.idle, one.other, one.requested) == (other.idle, other.other, other.requested)
    assert rule(old) == rule(new) == "fragmentation"


def test_a_wrapped_message_is_read_whole():
    text = message("2.00 GiB", 64, 50, "1.00 GiB", 60).replace("; ", ";\n   ")
    assert rule(text) == "fragmentation"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (message("20.00 MiB", 64, 10, "20.00 MiB", 11), "other_process"),
        (message("2.00 GiB", 64, 55, "1.00 GiB", 60), "fragmentation"),
        (message("4.00 GiB", 64, 59, "1.00 GiB", 60), "capacity"),
        (message("4.00 GiB", 64, 40, "1.00 GiB", 60), "fragmentation"),
        ("input has dynamic shape; " + message("4.00 GiB", 64, 40, "1.00 GiB", 60), "dynamic_shape_reservation"),
        ("File train.py in save_checkpoint\n" + message("4.00 GiB", 64, 59, "1.00 GiB", 60), "checkpoint_lock"),
        ("op recompute_MatMul failed\n" + message("4.00 GiB", 64, 59, "1.00 GiB", 60), "recompute_conflict"),
        ("TotalUsedMemStatistics : 1000 plus alloc size : 100 is more than total mem size : 1050.", "pool_limit"),
        ("Memory not enough: current free memory size[10] is smaller than required size[100].", "pool_exhausted"),
        ("Call rtMalloc fail, purpose: x, type = 2, size:1048576, device_id:0", "device_allocator"),
        ("hcclCommInitRootInfo\nhalMemAlloc failed: device_id=7, size=419430400, type=2", "hccl_buffers"),
        ("NEEDED_HCCL_BUFFSIZE(a*b) = 812MB, HCCL_BUFFSIZE=200MB.", "hccl_buffer_too_small"),
        ("Device(id:0) memory isn't enough and alloc failed, kernel name: Default/Conv2D", "numbers_missing"),
        ("CUDA out of memory. Tried to allocate 5.00 GiB", "numbers_missing"),
        ("terminate called after throwing std::bad_alloc", "host_memory"),
        ("worker exited with code 137", "host_memory"),
        ("all is well", "not_recognised"),
    ],
)  # fmt: skip
def test_classes(text, expected):
    assert rule(text) == expected


def test_a_situation_keeps_the_arithmetic_as_its_rival():
    (finding,) = diagnose_out_of_memory("save_checkpoint\n" + message("4.00 GiB", 64, 59, "1.00 GiB", 60))
    assert "capacity" in {rival.rule for rival in finding.rivals}
    # A card that is held by somebody else isn't freed by saving otherwise.
    assert rule("save_checkpoint\n" + message("20.00 MiB", 64, 10, "20.00 MiB", 11)) == "other_process"


def test_leaked_references_are_a_growth_of_several_steps():
    def log(sizes):
        return "\n".join(f"step: {n} allocated: {size} MiB" for n, size in enumerate(sizes, start=1))

    finding = diagnose_out_of_memory(log([100, 110, 120, 130, 140]))[0]
    assert (finding.rule, finding.value("growth_mib")) == ("leaked_references", 10.0)
    assert rule(log([100, 110, 105, 130, 140])) == "not_recognised"
    assert rule(log([100, 110, 120])) == "not_recognised"


def test_growth_is_looked_at_a_rank():
    lines = [
        f"[Rank {rank}] (after {step} iterations) memory (MB) | allocated: {100 + rank * step}.5 | max allocated: 1"
        for step in (1, 2, 3, 4)
        for rank in (0, 1)
    ]
    (finding,) = diagnose_out_of_memory("\n".join(lines))
    assert finding.evidence[0].where == "rank 1"


def test_retries_of_the_driver_are_one_finding():
    text = "\n".join(
        f"Call rtMalloc fail, purpose: p, size:{size}, device_id:0" for size in (4 * GIB, 2 * GIB, 4 * GIB)
    )
    (finding,) = diagnose_out_of_memory(text)
    assert (finding.value("attempts"), finding.value("smallest_refused_gib")) == (2, 2.0)


def test_no_number_is_made_up():
    (finding,) = diagnose_out_of_memory("NPU out of memory. Tried to allocate 5.00 GiB")
    assert [item.name for item in finding.evidence] == ["requested_gib", "source"]


@pytest.mark.parametrize(
    "piece",
    ["out of memory 9", "9", "a b c ", "rtMalloc fail ", "step 1 ", "ckpt ", "shape: [", "Recompute[Rank 1] ",
     "memory isn't enough and alloc failed, kernel name: k", "NEEDED_HCCL_BUFFSIZE(", "\r 1% 1.5it/s"],
)  # fmt: skip
def test_a_long_line_takes_linear_time(piece):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        began = time.process_time()
        diagnose_out_of_memory(text)
        return time.process_time() - began

    # Quadratic would be 64 times as long, and minutes.
    assert seconds(400_000) < 30 * seconds(50_000) + 0.5


def test_a_progress_bar_before_the_message_hides_nothing():
    bar = "".join(f"\r{step}% NPU 7 1.5it/s" for step in range(2000))
    text = f"{bar}\r{message('2.00 GiB', 64, 50, '1.00 GiB', 60)}"
    (finding,) = diagnose_out_of_memory(text)
    assert (finding.rule, finding.value("device")) == ("fragmentation", 3)
    assert finding.evidence[0].where == "line 2002"


@pytest.mark.parametrize(
    ("text", "impossible"),
    [
        (message("0 MiB", 0, 0, "0 MiB", 0), "requested is 0; total is 0"),
        (message("2.00 GiB", 64, 50, "1.00 GiB", 80), "reserved > total"),
        (message("2.00 GiB", 64, 60, "1.00 GiB", 50), "allocated > reserved"),
        (message("2.00 GiB", 64, 60, "90.00 GiB", 60), "free > total"),
        ("save_checkpoint " + message("2.00 GiB", 64, 50, "20 GiB", 60), "free + reserved > total"),
        ("TotalUsedMemStatistics : 10 plus alloc size : 10 is more than total mem size : 90.", "<= limit"),
        ("TotalUsedMemStatistics : 0 plus alloc size : 0 is more than total mem size : 0.", "limit is 0"),
        ("Memory not enough: current free memory size[100] is smaller than required size[10].", "free >= requested"),
        ("Call rtMalloc fail, purpose: x, type = 2, size:0, device_id:0", "requested is 0"),
        ("NEEDED_HCCL_BUFFSIZE(a*b) = 100MB, HCCL_BUFFSIZE=200MB.", "as large as needed"),
    ],
)  # fmt: skip
def test_no_class_is_made_up_from_impossible_numbers(text, impossible):
    (finding,) = diagnose_out_of_memory(text)
    assert finding.rule == "numbers_contradictory" and impossible in finding.value("impossible")


def test_rounded_numbers_are_no_contradiction():
    assert rule(message("5.00 GiB", 64, 60.01, "4.00 GiB", 60)) == "capacity"


def test_unused_memory_that_would_do_isnt_called_too_little():
    (full,) = diagnose_out_of_memory(message("3.46 GiB", 79.25, 74.03, "1.93 GiB", 76.43))
    assert full.rule == "capacity"
    assert [rival.because for rival in full.rivals] == [
        "2.40 GiB of the pool and 1.93 GiB of the card are unused, enough if they lay together, yet hardly any of the pool"
    ]
    (less,) = diagnose_out_of_memory(message("5.00 GiB", 79.25, 74.03, "1.93 GiB", 76.43))
    assert [rival.because for rival in less.rivals] == ["2.40 GiB of the pool are unused, too little to help"]
