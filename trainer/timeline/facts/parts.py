"""Steps split into their parts, from timelines where there are any, else from the profiler's own tables."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.facts.subject import Fact, ms, ratio, share
from trainer.timeline.intervals import Set
from trainer.timeline.model import Recording
from trainer.timeline.roles import Role, collective_of

# A step that the trace covers less than this can't be split.
_COVERED = 0.99
# The first step compiles and connects: it is left out of averages from this many steps on.
_WARM_UP_FROM = 3


@dataclass(frozen=True)
class StepParts:
    """One step of one rank in ns: computing + exposed + free = step."""

    rank: int
    step: str
    step_ns: int
    computing_ns: int
    communication_ns: int
    exposed_ns: int
    free_ns: int
    receive_ns: int | None = None


def step_parts(ranks: list[Rank], recording: Recording) -> list[StepParts]:
    """All steps that can be split, warm-up left out where there are enough of them."""
    found = [part for rank in ranks if rank.complete for part in all_step_parts(rank)]
    if not found:
        found = table_parts(recording)
    return _without_warm_up(found)


def all_step_parts(rank: Rank) -> list[StepParts]:
    """Every step of a rank that its trace covers, warm-up too."""
    parts = []
    for step in rank.steps:
        covered = intervals.total(intervals.clip(rank.evidence, step.start_ns, step.end_ns))
        if step.end_ns <= step.start_ns or covered < _COVERED * (step.end_ns - step.start_ns):
            continue
        split = intervals.breakdown(rank.computing, rank.communication, step.start_ns, step.end_ns)
        parts.append(
            StepParts(
                rank.rank,
                str(step.step),
                split.window_ns,
                split.computing_ns,
                split.communication_ns,
                split.exposed_ns,
                split.free_ns,
            )
        )
    return parts


def table_parts(recording: Recording) -> list[StepParts]:
    """The steps of the profiler's own tables."""
    return [
        StepParts(
            row.ranks[0],
            row.step,
            row.step_ns,
            row.computing_ns,
            row.communication_ns,
            row.exposed_ns,
            row.free_ns,
            row.bubble_ns,
        )
        for row in recording.steps
        if not row.is_stage and len(row.ranks) == 1 and row.step_ns > 0
    ]


def _without_warm_up(parts: list[StepParts]) -> list[StepParts]:
    first: dict[int, str] = {}
    count: dict[int, int] = {}
    for part in parts:
        first.setdefault(part.rank, part.step)
        count[part.rank] = count.get(part.rank, 0) + 1
    return [part for part in parts if count[part.rank] < _WARM_UP_FROM or part.step != first[part.rank]]


def step_facts(parts: list[StepParts], ranks: list[Rank], names: list[str]) -> dict[str, Fact]:
    """Shares of a step over all ranks: sums first, divided once."""
    if not parts:
        return {}
    step, computing, communication, exposed, free = (
        sum(values)
        for values in zip(
            *((p.step_ns, p.computing_ns, p.communication_ns, p.exposed_ns, p.free_ns) for p in parts),
            strict=True,
        )
    )
    count = len(parts)
    where = f"{count} steps of {len({part.rank for part in parts})} ranks"
    facts = {
        "step_ms": ms(step / count, where),
        "free_share": share(free, step, where),
        "free_ms": ms(free / count, where),
        "compute_share": share(computing, step, where),
        "exposed_share": share(exposed, step, where),
        "exposed_ms": ms(exposed / count, where),
        "communication_ms": ms(communication / count, where),
        "communication_share": share(communication, step, where),
        "overlap_share": share(communication - exposed, communication, where),
        "compute_over_communication": Fact(ratio(computing, communication), "ratio", where),
        "all_reduce_share": _kind_share(ranks, names),
    }
    facts.update(_gaps(ranks))
    facts.update(_spreads(parts))
    return facts


def _kind_share(ranks: list[Rank], names: list[str]) -> Fact:
    """How much of the communication time is all-reduce: the union of those events over the union of all."""
    part = whole = 0
    for rank in ranks:
        events = rank.communication_events
        if not len(events):
            continue
        kinds = {number: collective_of(names[number]) for number in np.unique(events.name)}
        chosen = events.where(np.array([kinds[number] == "all_reduce" for number in events.name]))
        part += intervals.total(intervals.union(chosen.start, chosen.end))
        whole += intervals.total(rank.communication)
    return share(part, whole) if whole else Fact(None, "share", "no communication rows")


def _gaps(ranks: list[Rank]) -> dict[str, Fact]:
    gaps, lengths = [], []
    for rank in ranks:
        for before, after in zip(rank.steps, rank.steps[1:], strict=False):
            if after.step == before.step + 1:
                gaps.append(max(0, after.start_ns - before.end_ns))
                lengths.append(after.end_ns - after.start_ns)
    if not gaps:
        return {"iteration_gap_ms": Fact(None, "ms", "no consecutive step marks")}
    where = f"{len(gaps)} pauses"
    return {
        "iteration_gap_ms": ms(median(gaps), where),
        "iteration_gap_share": share(sum(gaps), sum(gaps) + sum(lengths), where),
    }


def _spreads(parts: list[StepParts]) -> dict[str, Fact]:
    """How the ranks differ, step by step; the slow rank is the one that communicates least."""
    steps: dict[str, dict[int, StepParts]] = {}
    for part in parts:
        steps.setdefault(part.step, {})[part.rank] = part
    everyone = {part.rank for part in parts}
    whole = [by_rank for by_rank in steps.values() if len(by_rank) == len(everyone)]
    if len(everyone) < 2 or not whole:
        return {}
    spreads, compute_spreads, means, votes = [], [], [], []
    for by_rank in whole:
        communication = {rank: part.communication_ns for rank, part in by_rank.items()}
        computing = [part.computing_ns for part in by_rank.values()]
        spreads.append(max(communication.values()) - min(communication.values()))
        compute_spreads.append(max(computing) - min(computing))
        means.append(sum(part.step_ns for part in by_rank.values()) / len(by_rank))
        votes.append(_slowest(communication))
    slow = max(sorted(set(votes), key=str), key=votes.count)
    extra = None
    if slow is not None:
        extra = median(
            by_rank[slow].computing_ns - median(part.computing_ns for part in by_rank.values())
            for by_rank in whole
        )
    where = f"median of {len(whole)} steps, {len(everyone)} ranks"
    mean_step = median(means)
    return {
        "communication_spread_ms": ms(median(spreads), where),
        "communication_spread_share": share(median(spreads), mean_step, where),
        "compute_spread_share": share(median(compute_spreads), mean_step, where),
        "slow_rank": Fact(None if slow is None else float(slow), "rank", where),
        "slow_rank_vote": share(votes.count(slow) if slow is not None else 0, len(votes), where),
        "slow_rank_extra_compute_ms": ms(extra, where),
    }


def _slowest(communication: dict[int, int]) -> int | None:
    """The rank with the shortest communication, if it stands out from the others; None where none does."""
    values = np.array(sorted(communication.values()), np.float64)
    rank = min(communication, key=lambda item: (communication[item], item))
    if len(values) < 3:
        return rank
    rest = values[1:]
    spread = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    return rank if values[0] < float(np.median(rest)) - 3 * spread else None


def data_wait(rank: Rank) -> Set:
    """Time in rows that fetch the next batch (GetNext, data loaders)."""
    events = rank.events_of(Role.DATA)
    return intervals.union(events.start, events.end)
