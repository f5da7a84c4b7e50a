"""The numbers in out-of-memory messages of torch_npu, MindSpore, CANN and HCCL, in bytes.

What belongs together stands within `_NEAR` characters: without that bound a long line takes quadratic time.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_NEAR = 300
_MESSAGE = 700
_LINE_AROUND = 2000

Kind = Literal["framework", "pool", "free", "kernel", "device", "hccl_buffer"]

_UNITS = {
    "B": 1,
    "KB": 2**10,
    "MB": 2**20,
    "GB": 2**30,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = r"(\d{1,18}(?:\.\d{1,18})?)\s*(GiB|MiB|KiB|TiB|GB|MB|KB|B|bytes)"
_FRAMEWORK = re.compile(rf"out of memory\.?\s*Tried to allocate {_SIZE}", re.IGNORECASE)
_PARTS = {
    "total": re.compile(rf"{_SIZE} total capacity|total capacity of {_SIZE}"),
    "allocated": re.compile(rf"{_SIZE} (?:already allocated|is allocated by)"),
    "free": re.compile(rf"{_SIZE} (?:is )?free"),
    "reserved": re.compile(rf"{_SIZE} reserved in total"),
    # The newer form gives what the pool holds unused, instead of all that it holds.
    "idle": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_POOL = re.compile(
    r"TotalUsedMemStatistics\s*:\s*(?P<used>\d{1,18})(?: plus TotalUsedByEventMemStatistics\s*:\s*(?P<events>\d{1,18}) and)?"
    r" plus alloc size\s*:\s*(?P<asked>\d{1,18}) is more than total mem size\s*:\s*(?P<limit>\d{1,18})"
)
_FREE = re.compile(r"current free memory size\[(\d{1,18})B?\] is smaller than required size\[(\d{1,18})B?\]")
_KERNEL = re.compile(
    r"memory isn't enough and alloc failed(?:, kernel name\s*:\s*(?P<kernel>[^,\n]{1,300}))?(?:, alloc size\s*:\s*(?P<asked>\d{1,18})B?)?"
)
_DEVICE = re.compile(
    rf"(?:rtMalloc fail|halMemAlloc failed|aclrtMalloc\w{{0,40}} fail\w{{0,40}})[^\n]{{0,{_NEAR}}}?\bsize\s*[:=]\s*(?P<asked>\d{{1,18}})"
)
_HCCL = re.compile(
    r"NEEDED_HCCL_BUFFSIZE(?:\([^=]{0,300}\))?\s*=\s*(?P<need>\d{1,18})\s*MB,\s*HCCL_BUFFSIZE\s*=\s*(?P<have>\d{1,18})\s*MB"
)
_CARD = re.compile(r"\b(?:NPU|GPU|device_id)\s*[:=]?\s*(\d{1,18})\b|Device\(id:(\d{1,18})\)")
_GROWTH = re.compile(
    r"\bafter (?P<step>\d{1,18}) iterations?\)? memory \(MB\) \| allocated: (?P<mb>\d{1,15}(?:\.\d{1,18})?)"
    rf"|\bstep[:=\s]{{1,20}}(?P<step2>\d{{1,18}})[^\n]{{0,{_NEAR}}}?\b(?:memory_)?allocated[:=\s]{{1,20}}"
    r"(?P<size>\d{1,15}(?:\.\d{1,18})?)\s{0,20}(?P<unit>GiB|MiB|GB|MB)",
    re.IGNORECASE,
)
_RANK = re.compile(r"\[Rank (\d{1,18})\]", re.IGNORECASE)
_NEW_LINE = re.compile(r"\r\n?")


@dataclass(frozen=True)
class MemoryMessage:
    """One message. A number that it doesn't give is None; all in bytes (hccl_buffer: MB as they stand)."""

    kind: Kind
    line: int
    requested: int | None = None
    total: int | None = None
    allocated: int | None = None
    free: int | None = None
    reserved: int | None = None
    limit: int | None = None
    held_by_events: int | None = None
    kernel: str | None = None
    device: int | None = None
    need_mb: int | None = None
    have_mb: int | None = None

    @property
    def idle(self) -> int | None:
        """Reserved by the pool, but unused."""
        if self.reserved is None or self.allocated is None:
            return None
        return max(0, self.reserved - self.allocated)

    @property
    def other(self) -> int | None:
        """Neither free nor in this process's pool."""
        if self.total is None or self.free is None or self.reserved is None:
            return None
        return max(0, self.total - self.free - self.reserved)

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What can't be true of the numbers together; those that were rounded for printing may differ by 1 %."""
        used = (self.allocated or 0) + (self.held_by_events or 0)
        pairs = (
            ("allocated > reserved", self.allocated, self.reserved),
            ("allocated > total", self.allocated, self.total),
            ("reserved > total", self.reserved, self.total),
            ("free > total", self.free, self.total),
            ("free + reserved > total", _sum(self.free, self.reserved), self.total),
        )
        found = [text for text, part, whole in pairs if _above(part, whole)]
        found += [f"{name} is 0" for name in ("requested", "total", "limit") if getattr(self, name) == 0]
        if self.kind == "pool" and self.limit and self.requested and used + self.requested <= self.limit:
            found.append("used + requested <= limit")
        if self.kind == "free" and self.requested and (self.free or 0) >= self.requested:
            found.append("free >= requested")
        if self.kind == "hccl_buffer" and (self.have_mb or 0) >= (self.need_mb or 0):
            found.append("the buffer is as large as needed")
        return tuple(found)


@dataclass(frozen=True)
class MemoryReading:
    """Allocated bytes after a step, of one rank."""

    rank: int | None
    step: int
    allocated: int


def read_messages(text: str) -> Iterator[MemoryMessage]:
    """Every message with numbers, in the order of the text; a repetition of the same numbers is left out."""
    text = _NEW_LINE.sub("\n", text)
    ends = [found.start() for found in re.finditer("\n", text)]
    seen = set[str]()
    for kind, pattern in _PATTERNS:
        for found in pattern.finditer(text):
            message = _message(kind, found, text, bisect_left(ends, found.start()) + 1)
            key = repr((kind, found.groups(), message.total, message.free))
            if key not in seen:
                seen.add(key)
                yield message


def read_growth(text: str) -> Iterator[MemoryReading]:
    """Readings of allocated memory by step, as training logs print them."""
    text = _NEW_LINE.sub("\n", text)
    for found in _GROWTH.finditer(text):
        named = _RANK.search(_around(text, found)[0])
        rank = int(named.group(1)) if named and found.group("mb") else None
        if found.group("mb"):
            yield MemoryReading(rank, int(found.group("step")), _bytes(found.group("mb"), "MiB"))
        else:
            size = _bytes(found.group("size"), found.group("unit"))
            yield MemoryReading(rank, int(found.group("step2")), size)


_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("framework", _FRAMEWORK),
    ("pool", _POOL),
    ("hccl_buffer", _HCCL),
    ("device", _DEVICE),
    ("free", _FREE),
    ("kernel", _KERNEL),
)


def _message(kind: Kind, found: re.Match[str], text: str, line: int) -> MemoryMessage:
    whole = found.group(0).join(_around(text, found))
    card = _CARD.search(whole)
    device = int(card.group(1) or card.group(2)) if card else None
    if kind == "framework":
        # The numbers may be wrapped over the next lines.
        behind = " ".join(text[found.start() : found.start() + _MESSAGE].split())
        parts = {name: pattern.search(behind) for name, pattern in _PARTS.items()}
        sizes = {
            name: _bytes(*(group for group in part.groups() if group)) for name, part in parts.items() if part
        }
        idle = sizes.pop("idle", None)
        if idle is not None and "allocated" in sizes:
            sizes.setdefault("reserved", sizes["allocated"] + idle)
        return MemoryMessage(
            kind, line, _bytes(*found.groups()), sizes.get("total"), sizes.get("allocated"),
            sizes.get("free"), sizes.get("reserved"), device=device,
        )  # fmt: skip
    groups = found.groupdict()
    if kind == "pool":
        return MemoryMessage(
            kind, line, int(groups["asked"]), allocated=int(groups["used"]), limit=int(groups["limit"]),
            held_by_events=int(groups["events"]) if groups["events"] else None, device=device,
        )  # fmt: skip
    if kind == "free":
        return MemoryMessage(kind, line, int(found.group(2)), free=int(found.group(1)), device=device)
    if kind == "hccl_buffer":
        return MemoryMessage(kind, line, need_mb=int(groups["need"]), have_mb=int(groups["have"]))
    asked = int(groups["asked"]) if groups.get("asked") else None
    kernel = groups["kernel"].strip() if groups.get("kernel") else None
    return MemoryMessage(kind, line, asked, kernel=kernel, device=device)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _above(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > 1.01 * whole


def _around(text: str, found: re.Match[str]) -> tuple[str, str]:
    """What stands before and behind a match in its line, so far as a line is looked at."""
    before = text[max(0, found.start() - _LINE_AROUND) : found.start()].rpartition("\n")[2]
    return before, text[found.end() : found.end() + _LINE_AROUND].partition("\n")[0]


def _bytes(number: str, unit: str) -> int:
    scale = 1 if unit.lower() == "bytes" else _UNITS[unit.upper()]
    return round(float(number) * scale)
