"""All facts of a recording."""

from statistics import mean

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.facts.arrivals import arrival_facts, collective_facts
from trainer.timeline.facts.kernels import bound_facts, operator_subjects
from trainer.timeline.facts.links import link_subjects, transfers_of, transport_subjects
from trainer.timeline.facts.parts import data_wait, step_facts, step_parts
from trainer.timeline.facts.stages import pipeline_facts, rank_subjects, stage_subjects
from trainer.timeline.facts.subject import Fact, Subject, ms, ratio, share
from trainer.timeline.facts.world import World, shown_ranks
from trainer.timeline.model import Recording
from trainer.timeline.skew import Skew

# A pool of less than one such part of the largest one isn't looked at.
_SMALL_POOL = 10


def collect(ranks: list[Rank], recording: Recording, skew: Skew, world: World) -> list[Subject]:
    """The run first, then ranks, stages, links, transports and operators."""
    names = recording.names.texts
    run: dict[str, Fact] = {
        "missing_ranks": Fact(float(len(world.missing)), "ranks", "; ".join(world.reasons)),
        "world_size": Fact(float(world.size), "ranks"),
        "ranks_present": Fact(float(len(world.present)), "ranks", shown_ranks(world.present)),
    }
    run |= step_facts(step_parts(ranks, recording), ranks, names)
    run |= arrival_facts(ranks, skew, names)
    run |= collective_facts(recording)
    run |= pipeline_facts(ranks, recording)
    run |= bound_facts(ranks, recording.kinds.texts)
    run |= _data_facts(ranks, recording)
    run |= _memory_facts(recording)
    launches = sum(rank.launches for rank in ranks)
    lost = sum(rank.lost_launches for rank in ranks)
    run["lost_launch_share"] = share(
        lost, launches, "launches are paired with device tasks" if launches else "no launches"
    )
    run["launches"] = Fact(float(launches))
    transfers = transfers_of(ranks, recording)
    return [
        Subject("run", "run", run),
        *rank_subjects(recording),
        *stage_subjects(ranks, recording),
        *link_subjects(transfers),
        *transport_subjects(transfers),
        *operator_subjects(ranks, recording),
    ]


def _data_facts(ranks: list[Rank], recording: Recording) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    waits = [
        intervals.total(intervals.clip(waiting, step.start_ns, step.end_ns))
        for rank in ranks
        if len(waiting := data_wait(rank))
        for step in rank.steps
    ]
    facts["data_wait_ms"] = ms(mean(waits) if waits else None, f"{len(waits)} steps")
    queues = recording.queues
    samples = sum(queue.samples for queue in queues)
    where = ", ".join(dict.fromkeys(queue.source for queue in queues)) or "no dataset queue file"
    facts["queue_samples"] = Fact(float(samples), "", where)
    facts["queue_empty_share"] = Fact(ratio(sum(queue.empty for queue in queues), samples), "share", where)
    usages = [queue.usage for queue in queues if queue.usage is not None]
    facts["queue_usage"] = Fact(mean(usages) if usages else None, "share", where)
    return facts


def _memory_facts(recording: Recording) -> dict[str, Fact]:
    if not recording.memory:
        return {"reserved_over_allocated": Fact(None, "ratio", "no memory record")}
    # Peak against peak: at a moment when little is allocated a full pool means nothing.
    peaks: dict[tuple[int | None, str], tuple[float, float]] = {}
    for point in recording.memory:
        reserved, allocated = peaks.get((point.rank, point.component), (0.0, 0.0))
        peaks[point.rank, point.component] = (
            max(reserved, point.reserved_bytes),
            max(allocated, point.allocated_bytes),
        )
    # The pool that wastes most for its size; a small one (of another component) means nothing beside a large one.
    largest = max(reserved for reserved, _ in peaks.values())
    pools = {pool: peak for pool, peak in peaks.items() if peak[0] * _SMALL_POOL >= largest}
    (rank, component), (reserved, allocated) = max(
        pools.items(), key=lambda item: item[1][0] / item[1][1] if item[1][1] else 0.0
    )
    owner = "" if rank is None else f"rank {rank}, "
    where = (
        f"{owner}{component}: its peaks, the worst of {len(peaks)} pools in {len(recording.memory)} records"
    )
    return {
        "reserved_over_allocated": Fact(ratio(reserved, allocated), "ratio", where),
        "reserved_gap_mib": Fact((reserved - allocated) / (1 << 20), "MiB", where),
        "peak_allocated_mib": Fact(allocated / (1 << 20), "MiB", where),
    }
