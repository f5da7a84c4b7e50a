"""How far the clocks of ranks are apart, with an uncertainty, from what must have happened at the same time.

Two kinds of evidence. A send and its receive, both ways: with θ = clock of i − clock of j, a message from i to j
gives send − receive = θ − delay, one from j to i gives receive − send = θ + delay, and the delay isn't negative.
So θ lies between the largest of the first and the smallest of the second: their middle, ± half the distance
(NTP's θ = ((t2 − t1) − (t4 − t3)) / 2, ± half the round trip). And the ends of a collective: all ranks leave it
together, so the differences of their ends scatter around θ.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from trainer.timeline.assemble import Rank
from trainer.timeline.events import Slices, concatenate
from trainer.timeline.roles import collective_of

# What a trace resolves: MindSpore's and CANN's exports keep 10 ns.
_RESOLUTION_NS = 10
# Collectives that no rank leaves before all have come.
_SYNCHRONOUS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
_MOST_NAMES = 2_000
_MARKER_NS = 1_000
# The share of end differences that the uncertainty covers; below this many, all of them.
_COVERAGE = 0.95
_FEW = 20


@dataclass(frozen=True)
class Offset:
    """Clock of `rank` minus clock of `reference`, in ns."""

    rank: int
    reference: int
    offset_ns: float
    uncertainty_ns: float
    pairs: int
    method: str

    @property
    def significant(self) -> bool:
        """Whether the offset can be told from none."""
        return abs(self.offset_ns) > self.uncertainty_ns

    def reversed(self) -> "Offset":
        """The same, seen from the other rank."""
        return Offset(
            self.reference, self.rank, -self.offset_ns, self.uncertainty_ns, self.pairs, self.method
        )


@dataclass(frozen=True)
class Skew:
    """Offsets of all ranks to one reference; a rank that no evidence reaches has none."""

    reference: int | None
    offsets: dict[int, Offset]
    edges: tuple[Offset, ...]
    unknown: tuple[int, ...]

    def correction_ns(self, rank: int) -> int:
        """What to take off a rank's times; an offset that can't be told from none is left as it is."""
        offset = self.offsets.get(rank)
        return round(offset.offset_ns) if offset is not None and offset.significant else 0

    def uncertainty_ns(self, ranks: Iterable[int]) -> float | None:
        """How exactly the clocks of some ranks can be compared; None where one of them is unknown."""
        known = [self.offsets.get(rank) for rank in ranks]
        if any(offset is None for offset in known):
            return None
        return sum(sorted(offset.uncertainty_ns for offset in known if offset is not None)[-2:])

    def to_json(self) -> dict[str, Any]:
        """Offsets in µs, as reports show them."""
        return {
            "reference": self.reference,
            "ranks": {
                str(rank): {
                    "offset_us": round(offset.offset_ns / 1e3, 3),
                    "uncertainty_us": round(offset.uncertainty_ns / 1e3, 3),
                    "method": offset.method,
                    "pairs": offset.pairs,
                    "corrected": self.correction_ns(rank) != 0,
                }
                for rank, offset in sorted(self.offsets.items())
            },
            "unknown_ranks": list(self.unknown),
        }


def estimate(ranks: list[Rank], names: list[str], stages: dict[int, tuple[int, ...]]) -> Skew:
    """Offsets of all ranks to the lowest one, along the chain of evidence with the least uncertainty."""
    if not ranks:
        return Skew(None, {}, (), ())
    events = {rank.rank: _named(rank.communication_events, names) for rank in ranks}
    edges = [*_collective_edges(events), *_message_edges(events, stages)]
    reference = ranks[0].rank
    offsets = _closest(reference, edges)
    unknown = tuple(rank.rank for rank in ranks if rank.rank not in offsets)
    return Skew(reference, offsets, tuple(edges), unknown)


Named = dict[str, Slices]


def _named(events: Slices, names: list[str]) -> Named:
    """A rank's communication events by name, in order of time."""
    order = np.argsort(events.name, kind="stable")
    ids, starts = np.unique(events.name[order], return_index=True)
    parts = np.split(order, starts[1:])
    found = list(zip(ids, parts, strict=True))[:_MOST_NAMES] if len(ids) else []
    return {names[number]: events.where(part) for number, part in found}


def _collective_edges(events: dict[int, Named]) -> list[Offset]:
    """For each rank, the best of its evidence against ranks before it that took part in the same collectives."""
    edges = []
    hubs: dict[frozenset[str], int] = {}
    for rank, named in events.items():
        shared = frozenset(name for name in named if collective_of(name) in _SYNCHRONOUS)
        if not shared:
            continue
        if shared in hubs:
            partners = [hubs[shared]]
        else:
            partners = [hub for of_hub, hub in hubs.items() if of_hub & shared]
            hubs[shared] = rank
        for partner in partners:
            offset = _from_ends(rank, named, partner, events[partner])
            if offset is not None:
                edges.append(offset)
    return edges


def _from_ends(rank: int, named: Named, other: int, of_other: Named) -> Offset | None:
    differences = []
    for name, mine in named.items():
        theirs = of_other.get(name)
        if theirs is None or len(theirs) != len(mine) or collective_of(name) not in _SYNCHRONOUS:
            continue
        differences.append(mine.end - theirs.end)
    if not differences:
        return None
    found = np.concatenate(differences).astype(np.float64)
    middle = float(np.median(found))
    distances = np.abs(found - middle)
    spread = float(distances.max() if len(found) < _FEW else np.quantile(distances, _COVERAGE))
    return Offset(rank, other, middle, spread + _RESOLUTION_NS, len(found), "collective ends")


def _message_edges(events: dict[int, Named], stages: dict[int, tuple[int, ...]]) -> list[Offset]:
    """Offsets from sends and receives between neighbouring stages: of all pairings the tightest."""
    messages = {rank: (_of_kind(named, "send"), _of_kind(named, "receive")) for rank, named in events.items()}
    talking = [rank for rank, found in messages.items() if all(len(part) for part in found)]
    stage_of = {rank: stage for stage, members in stages.items() for rank in members}
    found = []
    for left, right in combinations(talking, 2):
        known = left in stage_of and right in stage_of
        if known and abs(stage_of[left] - stage_of[right]) != 1:
            continue
        offset = _from_messages(left, messages[left], right, messages[right])
        if offset is not None:
            found.append(offset)
    paired: set[int] = set()
    edges = []
    for offset in sorted(found, key=lambda item: item.uncertainty_ns):
        if offset.rank not in paired and offset.reference not in paired:
            paired.update((offset.rank, offset.reference))
            edges.append(offset)
    return edges


def _of_kind(named: Named, kind: str) -> Slices:
    found = concatenate(part for name, part in named.items() if collective_of(name) == kind)
    return found.where(np.argsort(found.end, kind="stable"))


Messages = tuple[Slices, Slices]  # sent, received


def _from_messages(left: int, of_left: Messages, right: int, of_right: Messages) -> Offset | None:
    """θ = clock of left − clock of right, from messages both ways, matched in order."""
    if len(of_left[0]) != len(of_right[1]) or len(of_left[1]) != len(of_right[0]):
        return None
    forth = of_left[0].end - of_right[1].end  # θ − delay
    back = of_left[1].end - of_right[0].end  # θ + delay
    low, high = int(forth.max()), int(back.min())
    if low > high:
        # Both ends of a message are marked when it is over: the differences scatter around θ. A marker's own length
        # is part of the doubt.
        both = np.concatenate([forth, back])
        marker = max(int(part.duration.max()) for part in (*of_left, *of_right))
        low, high = int(both.min()), int(both.max())
        low, high = low - min(marker, _MARKER_NS), high + min(marker, _MARKER_NS)
    uncertainty = (high - low) / 2 + _RESOLUTION_NS
    return Offset(left, right, (low + high) / 2, uncertainty, len(forth) + len(back), "messages")


def _closest(reference: int, edges: list[Offset]) -> dict[int, Offset]:
    """Least total uncertainty from the reference to each rank (Dijkstra)."""
    near: dict[int, list[Offset]] = {}
    for edge in edges:
        near.setdefault(edge.reference, []).append(edge)
        near.setdefault(edge.rank, []).append(edge.reversed())
    found: dict[int, Offset] = {}
    start = Offset(reference, reference, 0.0, 0.0, 0, "reference")
    heap: list[tuple[float, int, Offset]] = [(0.0, reference, start)]
    while heap:
        _, rank, offset = heapq.heappop(heap)
        if rank in found:
            continue
        found[rank] = offset
        for edge in near.get(rank, []):
            if edge.rank not in found:
                total = Offset(
                    edge.rank,
                    reference,
                    offset.offset_ns + edge.offset_ns,
                    offset.uncertainty_ns + edge.uncertainty_ns,
                    edge.pairs,
                    edge.method,
                )
                heapq.heappush(heap, (total.uncertainty_ns, edge.rank, total))
    return found
