"""Who waits for whom: the starts of one collective on several ranks, on corrected clocks."""

import numpy as np

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.events import Ints
from trainer.timeline.facts.subject import Fact, ms, share
from trainer.timeline.model import Recording
from trainer.timeline.roles import collective_of
from trainer.timeline.skew import Skew

_WAITED_FOR = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})


def arrival_facts(ranks: list[Rank], skew: Skew, names: list[str]) -> dict[str, Fact]:
    """Waiting before collectives: wait of r = latest start − start of r.

    Nothing is said where the clocks of the ranks can't be compared, or the same collectives aren't found.
    """
    comparable = [rank for rank in ranks if rank.rank in skew.offsets]
    unknown = {"worst_wait_over_uncertainty": Fact(None, "ratio", "clocks of ranks can't be compared")}
    if len(comparable) < 2:
        return unknown
    uncertainty = skew.uncertainty_ns(rank.rank for rank in comparable)
    if uncertainty is None:
        return unknown
    # Ranks of one pipeline stage share names of collectives; other stages have their own.
    groups: dict[str, dict[int, Ints]] = {}
    for rank in comparable:
        events = rank.communication_events
        shift = skew.correction_ns(rank.rank)
        for number in np.unique(events.name):
            name = names[number]
            if collective_of(name) in _WAITED_FOR:
                groups.setdefault(name, {})[rank.rank] = events.start[events.name == number] - shift
    worst, worst_where, latest, total_wait, found = 0.0, "", None, 0.0, 0
    for name, by_rank in groups.items():
        lengths = {len(starts) for starts in by_rank.values()}
        if len(by_rank) < 2 or len(lengths) != 1:
            continue
        members = sorted(by_rank)
        starts = np.array([by_rank[rank] for rank in members], np.float64)
        waits = starts.max(axis=0) - starts
        total_wait += float(waits.mean(axis=0).sum())
        found += starts.shape[1]
        column = int(waits.max(axis=0).argmax())
        if waits[:, column].max() > worst:
            worst = float(waits[:, column].max())
            latest = members[int(starts[:, column].argmax())]
            worst_where = _where(ranks, latest, float(starts[:, column].max()), skew, name)
    if not found:
        return {"worst_wait_over_uncertainty": Fact(None, "ratio", "no collective is found on two ranks")}
    window = sum(intervals.total(rank.evidence) for rank in comparable) / len(comparable)
    return {
        "worst_wait_ms": ms(worst, worst_where),
        "worst_wait_over_uncertainty": Fact(worst / uncertainty if uncertainty > 0 else None, "ratio"),
        "clock_uncertainty_ms": ms(uncertainty),
        "latest_rank": Fact(None if latest is None else float(latest), "rank", worst_where),
        "mean_wait_share": share(total_wait, window, f"{found} collectives"),
    }


def collective_facts(recording: Recording) -> dict[str, Fact]:
    """Waiting inside collectives, from communication.json: the rank that waits least is the one the others wait for.

    Sums over operations, divided once: single ratios say nothing (a real one is 1.0 for a wait of 0.2 µs).
    """
    rows = recording.collectives
    if not rows:
        return {"collective_wait_share": Fact(None, "share", "no communication.json")}
    wait, elapse = sum(row.wait_ns for row in rows), sum(row.elapse_ns for row in rows)
    by_rank: dict[int, int] = {}
    for row in rows:
        by_rank[row.rank] = by_rank.get(row.rank, 0) + row.wait_ns
    where = f"{len(rows)} operations of {len(by_rank)} ranks"
    least = min(by_rank, key=lambda rank: (by_rank[rank], rank)) if len(by_rank) > 1 else None
    return {
        "collective_wait_share": share(wait, elapse, where),
        "collective_wait_ms": ms(wait / len(rows), where),
        "collective_ranks": Fact(float(len(by_rank)), "ranks"),
        "least_waiting_rank": Fact(None if least is None else float(least), "rank", where),
    }


def _where(ranks: list[Rank], latest: int, start: float, skew: Skew, name: str) -> str:
    rank = next(item for item in ranks if item.rank == latest)
    own = start + skew.correction_ns(latest)
    step = next((mark.step for mark in rank.steps if mark.start_ns <= own < mark.end_ns), None)
    return f"step {step}, {name}" if step is not None else name
