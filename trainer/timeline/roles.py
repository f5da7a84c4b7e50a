"""What a row of a trace means: told by its process and thread row and its task type, never by one name alone.

Sources: the rows of CANN's and MindSpore's exports, and Kineto's categories (reference: diagnosis 1.1, 1.2, 1.5).
"""

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer.timeline.events import Slices


class Role(IntEnum):
    """What an event's time counts as."""

    OTHER = 0
    COMPUTE = 1
    COMMUNICATION = 2
    COMMUNICATION_TASK = (
        3  # the tasks inside a communication kernel: listed a second time, never counted as time
    )
    COPY = 4
    WAIT = 5  # synchronisation on the device: no work (a report counted it as kernels)
    STEP = 6
    HOST = 7
    PROFILER_COMPUTE = 8  # the profiler's own sums, for comparison
    PROFILER_COMMUNICATION = 9
    DATA = 10  # waiting for the next batch


DEVICE_ROLES = (Role.COMPUTE, Role.COMMUNICATION)

_COMMUNICATION_NAME = re.compile(
    r"^(nccl|rccl|mccl|hcom_|hccl)|^(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Send|Receive)\b"
    r"|(/|^)(AllReduce|AllGather|ReduceScatter|AllToAllv?|Broadcast|Send|Receive)-op\d+",
    re.IGNORECASE,
)
_COLLECTIVE_OF = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|broadcast|send|receive|recv|reduce)",
    re.I,
)
_ALIASES = {"recv": "receive", "sendrecv": "sendreceive"}
_STEP_NAME = re.compile(r"^(?:ProfilerStep\s*#?|Iteration |Step |step )(\d+)$")

# Kineto: category (lower case) → role
_CATEGORIES = {
    "kernel": Role.COMPUTE,
    "gpu_memcpy": Role.COPY,
    "gpu_memset": Role.COPY,
    "memcpy": Role.COPY,
    "memset": Role.COPY,
    "cuda_sync": Role.WAIT,
    "iteration time": Role.STEP,
    "gpu_user_annotation": Role.OTHER,  # the host's annotation, projected on the device
    "trace": Role.OTHER,
    "culaunchkernel": Role.COMPUTE,  # MindSpore on GPU: args.type of a kernel
}
# Ascend: task type (lower case) → role; the time of everything else on a stream is a kernel's
_TASKS = re.compile(
    r"notify|event_|sdma|rdma|memcpy|pcie|placeholder|profiling|model_|stream|callback|write_value|end_graph|"
    r"barrier|cmo|label|kfc|reduce_async|ffts_plus$|invalid|n/a"
)
_COPIES = re.compile(r"memcpy|sdma|pcie")


@lru_cache(maxsize=200_000)
def is_communication(name: str) -> bool:
    """Whether a kernel's name is a collective's or a send/receive's."""
    return _COMMUNICATION_NAME.search(name) is not None


@lru_cache(maxsize=200_000)
def collective_of(name: str) -> str:
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, receive, sendreceive, reduce or other."""
    found = _COLLECTIVE_OF.search(name.split("/")[-1].split("(")[0])
    if found is None:
        return "other"
    word = found.group(1).lower().replace("_", "")
    word = _ALIASES.get(word, word)
    return {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all",
    }.get(word, word)


def step_number(name: str) -> int | None:
    """The step that a marker's name tells, or None."""
    found = _STEP_NAME.match(name)
    return int(found.group(1)) if found else None


def row_role(process: str, thread: str, kind: str, name: str) -> Role:
    """The role of an event, by its process row, thread row, kind (task type or category) and name."""
    process, kind = process.strip(), kind.strip().lower()
    if process == "Ascend Hardware" or process.startswith("NPU"):
        return _hardware(thread, kind, name)
    if process in ("HCCL", "Communication"):
        return Role.COMMUNICATION_TASK if thread.startswith("Plane") else Role.COMMUNICATION
    if process == "Overlap Analysis":
        return {"Computing": Role.PROFILER_COMPUTE, "Communication": Role.PROFILER_COMMUNICATION}.get(
            thread if thread in ("Computing", "Communication") else name, Role.OTHER
        )
    if process == "CPU OP":  # MindSpore's profiler on a CPU: the operators are the device's work
        return _named(name, Role.COMPUTE)
    if process == "Step Trace":
        return Role.STEP if kind == "iteration time" else Role.OTHER
    if process.startswith("pid 10000"):  # MindInsight's row of all-reduce segments
        return Role.COMMUNICATION
    if kind in _CATEGORIES:
        return _named(name, _CATEGORIES[kind]) if _CATEGORIES[kind] == Role.COMPUTE else _CATEGORIES[kind]
    if kind == "user_annotation" and step_number(name) is not None:
        return Role.STEP
    if kind.startswith("operator type "):  # MindInsight's timeline: args.type is the operator's type
        return _named(name, Role.COMPUTE)
    return Role.HOST


def _hardware(thread: str, kind: str, name: str) -> Role:
    if thread.startswith("Step Trace"):
        return Role.STEP if kind == "iteration time" else Role.OTHER
    for text in (kind, name.lower() if name.isupper() else ""):
        if _TASKS.search(text):
            return Role.COPY if _COPIES.search(text) else Role.WAIT
    return _named(name, Role.COMPUTE)


def _named(name: str, otherwise: Role) -> Role:
    if name.rsplit("/", 1)[-1].startswith(("GetNext", "InitDataSetQueue", "InitData")):
        return Role.DATA
    return Role.COMMUNICATION if is_communication(name) else otherwise


def roles_of(
    slices: Slices, process: str, thread: str, kinds: list[str], names: list[str]
) -> NDArray[np.int8]:
    """The role of each event of a track; decided once for each pair of kind and name."""
    pairs = slices.kind.astype(np.int64) << 32 | slices.name
    distinct, index = np.unique(pairs, return_inverse=True)
    decided = np.array(
        [row_role(process, thread, kinds[pair >> 32], names[pair & 0xFFFFFFFF]) for pair in distinct],
        np.int8,
    )
    return decided[index] if len(distinct) else np.empty(0, np.int8)
