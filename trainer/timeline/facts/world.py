"""How many ranks there must be, and which of them the folder doesn't have."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.ranks import MOST_RANKS
from trainer.timeline.assemble import Rank
from trainer.timeline.model import Recording
from trainer.timeline.roles import collective_of


@dataclass(frozen=True)
class World:
    """The ranks that are there, those that aren't, and why it is known."""

    present: tuple[int, ...]
    missing: tuple[int, ...]
    size: int
    reasons: tuple[str, ...]


def world_of(ranks: list[Rank], recording: Recording, names: list[str]) -> World:
    """The size told by the files, the peers they name, and the rounds of their rings; the largest counts."""
    present = {rank.rank for rank in ranks}
    present |= {row.rank for row in recording.intervals} | {row.rank for row in recording.pipelines}
    present |= {row.rank for row in recording.collectives} | {row.rank for row in recording.flops}
    present |= {member for row in recording.steps if not row.is_stage for member in row.ranks}
    sizes: list[tuple[int, str]] = []
    if present:
        sizes.append((max(present) + 1, "the ranks present"))
    sizes += [(size, f"{where} says so") for where, size in recording.world_sizes.items()]
    for rank in ranks:
        if rank.peers:
            peers = sorted(rank.peers - {rank.rank})
            sizes.append((max(peers, default=0) + 1, f"rank {rank.rank} exchanges with {peers}"))
        ring = _ring_size(rank, names)
        if ring:
            sizes.append(
                (ring, f"rank {rank.rank} reduces {ring - 1} times over each link: a ring of {ring}")
            )
    for members in recording.stages.values():
        sizes.append((max(members, default=-1) + 1, "the stages name them"))
    for row in recording.steps:
        if row.is_stage and row.ranks:
            sizes.append((max(row.ranks) + 1, f"{row.source} names them"))
    size = max((size for size, _ in sizes), default=0)
    size = min(size, MOST_RANKS)
    reasons = tuple(dict.fromkeys(reason for told, reason in sizes if told == size))
    seen = {peer for rank in ranks for peer in rank.peers} - present
    if seen:
        reasons += (f"seen as peers: {sorted(seen)}",)
    missing = tuple(rank for rank in range(size) if rank not in present)
    return World(tuple(sorted(present)), missing, size, reasons if missing else ())


def _ring_size(rank: Rank, names: list[str]) -> int | None:
    """n from a ring all-reduce: its reduce-scatter half reduces n − 1 times over each link."""
    reduces = Counter(target for _, target, _, _, inline, _ in rank.links if inline)
    events = rank.communication_events
    all_reduces = sum(1 for number in events.name if collective_of(names[number]) == "all_reduce")
    if not reduces or not all_reduces or len(set(reduces.values())) != 1:
        return None
    rounds, rest = divmod(next(iter(reduces.values())), all_reduces)
    return rounds + 1 if rest == 0 and rounds > 0 else None


def shown_ranks(numbers: Sequence[int]) -> str:
    """Rank numbers with runs shortened: 0-3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
