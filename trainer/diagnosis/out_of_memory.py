"""Name the cause of an out-of-memory error by arithmetic on the numbers of its own message."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from pydantic import field_validator

from evalkit.yaml_source import load_yaml
from trainer.diagnosis.memory_messages import MemoryMessage, MemoryReading, read_growth, read_messages
from trainer.diagnosis.rulebook import RuleText, Strict, make_finding, rules_path
from trainer.findings import Evidence, Finding, Rival

_GIB, _MIB = 2**30, 2**20


class Thresholds(Strict):
    """From where on a class holds."""

    other_share: float
    idle_share: float
    fragmented: float
    growth_records: int
    context_gib: float


class MemoryBook(Strict):
    """All of rules/out_of_memory.yaml."""

    thresholds: Thresholds
    situations: dict[str, str]
    rules: dict[str, RuleText]

    @field_validator("situations")
    @classmethod
    def _compile(cls, situations: dict[str, str]) -> dict[str, str]:
        for pattern in situations.values():
            re.compile(pattern)
        return situations


@lru_cache(maxsize=1)
def memory_book() -> MemoryBook:
    """The classes of this package."""
    return load_yaml(rules_path("out_of_memory"), MemoryBook)


def diagnose_out_of_memory(text: str) -> list[Finding]:
    """Findings about the first message with numbers, the likeliest class first.

    Later messages of one text are mostly consequences; where they are of another kind they are rivals. Never empty:
    a text without any such message gets `not_recognised`.
    """
    messages = list(read_messages(text))
    situations = {name for name, pattern in memory_book().situations.items() if re.search(pattern, text)}
    findings = [*_growth(list(read_growth(text)))]
    for kind in ("hccl_buffer", "framework", "pool", "device", "free", "kernel"):
        chosen = [message for message in messages if message.kind == kind]
        if chosen:
            findings.append(_classify(chosen, messages, situations))
            break
    if not findings and "host_memory" in situations:
        found = re.search(memory_book().situations["host_memory"], text)
        assert found is not None
        findings.append(_make("host_memory", [Evidence("text", found.group(0))]))
    return findings or [_make("not_recognised", [Evidence("messages", 0)])]


def _classify(chosen: list[MemoryMessage], every: list[MemoryMessage], situations: set[str]) -> Finding:
    message = chosen[0]
    if message.contradictions:
        impossible = Evidence("impossible", "; ".join(message.contradictions), where=f"line {message.line}")
        return _make("numbers_contradictory", [impossible, *_evidence(message)])
    if message.kind == "hccl_buffer":
        return _make(
            "hccl_buffer_too_small",
            [Evidence("need_mb", message.need_mb, "MB"), Evidence("have_mb", message.have_mb, "MB")],
        )
    rule, rivals = _arithmetic(message, situations)
    # What the program was doing explains more than which limit it met, but it is text, not arithmetic: the class by
    # arithmetic stays as the rival. A foreign process or an idle pool is no matter of what was being done.
    doing = next((name for name in ("checkpoint_lock", "recompute_conflict") if name in situations), None)
    if rule not in ("other_process", "fragmentation", "dynamic_shape_reservation") and doing:
        rivals = [Rival(rule, "by the numbers alone"), *rivals]
        rule = doing
    elif (
        rule in ("device_allocator", "capacity") and "hccl_buffers" in situations and message.kind == "device"
    ):
        rivals = [Rival(rule, "by the numbers alone"), *rivals]
        rule = "hccl_buffers"
    rivals += [
        Rival("another_message", f"line {other.line} reports the {other.kind} too")
        for other in every
        if other.kind != message.kind
    ]
    evidence = _evidence(message)
    if len(chosen) > 1 and message.kind == "device":
        sizes = [other.requested for other in chosen if other.requested is not None]
        evidence.append(Evidence("attempts", len(sizes)))
        evidence.append(Evidence("smallest_refused_gib", round(min(sizes) / _GIB, 3), "GiB"))
    return _make(rule, evidence, rivals, **_filled(message))


def _arithmetic(message: MemoryMessage, situations: set[str]) -> tuple[str, list[Rival]]:
    if message.kind == "pool":
        return "pool_limit", _events(message)
    if message.kind == "device":
        return "device_allocator", []
    if message.kind == "free":
        return "pool_exhausted", []
    if message.kind == "kernel":
        return "numbers_missing", []
    return _framework(message, situations)


def _framework(message: MemoryMessage, situations: set[str]) -> tuple[str, list[Rival]]:
    limits = memory_book().thresholds
    asked, idle, free, other, total = (
        message.requested, message.idle, message.free, message.other, message.total,
    )  # fmt: skip
    rivals = []
    if (
        idle is None
        or free is None
        or other is None
        or total is None
        or asked is None
        or message.reserved is None
    ):
        return "numbers_missing", []
    if other > limits.context_gib * _GIB:
        rivals.append(
            Rival("hccl_buffers", f"{other / _GIB:.2f} GiB outside the pool are more than a context needs")
        )
    if other > limits.other_share * total and other > limits.context_gib * _GIB:
        if asked <= idle + free:
            rivals.append(Rival("fragmentation", f"{(idle + free) / _GIB:.2f} GiB lie in pieces"))
        return "other_process", rivals
    # A pool that is used up to the last per cent has pieces too, but joining them wouldn't help for long.
    fragmented = message.reserved >= limits.fragmented * (message.reserved - idle) or asked <= free
    if asked <= idle + free and fragmented:
        share = idle / message.reserved if message.reserved else 0.0
        if "dynamic_shape" in situations and share >= limits.idle_share:
            return "dynamic_shape_reservation", rivals
        rivals.append(
            Rival("capacity", f"with {(free + idle) / _GIB:.2f} GiB left the card is nearly full anyway")
        )
        return "fragmentation", rivals
    if idle:
        enough = asked <= idle + free
        helps = "enough if they lay together, yet hardly any of the pool" if enough else "too little to help"
        unused = f"{idle / _GIB:.2f} GiB of the pool" + (
            f" and {free / _GIB:.2f} GiB of the card" if enough else ""
        )
        rivals.append(Rival("fragmentation", f"{unused} are unused, {helps}"))
    return "capacity", rivals


def _events(message: MemoryMessage) -> list[Rival]:
    if not message.held_by_events or message.requested is None:
        return []
    return [
        Rival(
            "leaked_references",
            f"{message.held_by_events / _GIB:.2f} GiB wait for events of other streams, not for tensors",
        )
    ]


def _growth(readings: list[MemoryReading]) -> Iterator[Finding]:
    least = memory_book().thresholds.growth_records
    by_rank: dict[int | None, list[MemoryReading]] = defaultdict(list)
    for reading in readings:
        by_rank[reading.rank].append(reading)
    for rank, series in by_rank.items():
        series = sorted(series, key=lambda reading: reading.step)
        steps = series[-1].step - series[0].step
        rising = all(low.allocated < high.allocated for low, high in pairwise(series))
        if len(series) >= least and rising and steps > 0:
            growth = (series[-1].allocated - series[0].allocated) / steps
            where = f"rank {rank}" if rank is not None else ""
            evidence = [
                Evidence("records", len(series), where=where),
                Evidence("growth_mib", round(growth / _MIB, 3), "MiB/step", where),
                Evidence("first_step", series[0].step, where=where),
                Evidence("last_step", series[-1].step, where=where),
            ]
            yield _make("leaked_references", evidence)
            return


def _evidence(message: MemoryMessage) -> list[Evidence]:
    where = f"line {message.line}"
    names = (
        "requested",
        "total",
        "allocated",
        "reserved",
        "idle",
        "free",
        "other",
        "limit",
        "held_by_events",
    )
    values = [(name, getattr(message, name)) for name in names]
    evidence = [
        Evidence(f"{name}_gib", round(value / _GIB, 4), "GiB", where)
        for name, value in values
        if value is not None
    ]
    if message.kernel:
        evidence.append(Evidence("kernel", message.kernel, where=where))
    if message.device is not None:
        evidence.append(Evidence("device", message.device, where=where))
    return evidence


def _filled(message: MemoryMessage) -> dict[str, object]:
    """Every name that a summary may hold; those that the class doesn't use may be anything."""

    def gib(value: int | None) -> float:
        return (value or 0) / _GIB

    idle, free = message.idle or 0, message.free or 0
    used = message.allocated if message.allocated is not None else 0
    limit = message.limit if message.limit is not None else used + free
    asked = message.requested or 0
    return {
        "requested_gib": gib(message.requested), "total_gib": gib(message.total), "idle_gib": gib(idle),
        "reserved_gib": gib(message.reserved), "free_gib": gib(free), "other_gib": gib(message.other),
        "available_gib": gib(idle + free), "used_gib": gib(used), "limit_gib": gib(limit),
        "short_mib": max(0, used + asked - limit) / _MIB,
        "idle_share": idle / message.reserved if message.reserved else 0.0,
        "what": f"the driver refused {gib(message.requested):.2f} GiB while a communicator was set up",
    }  # fmt: skip


def _make(
    rule: str, evidence: list[Evidence], rivals: list[Rival] | None = None, **values: object
) -> Finding:
    return make_finding(rule, memory_book().rules[rule], evidence, rivals=rivals or [], values=values)
