"""Stages of a pipeline: from MindInsight's averages, the cluster table's stage rows, or a timeline that names them."""

from collections.abc import Mapping
from statistics import mean

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.facts.subject import Fact, Subject, ms, ratio, share
from trainer.timeline.model import Recording

# stage → (computing ns, communication ns) of each of its ranks
Times = dict[int, list[tuple[float, float]]]


def rank_subjects(recording: Recording) -> list[Subject]:
    """The pause before each rank's step against the average of all."""
    rows = recording.intervals
    if len(rows) < 2:
        return []
    average = mean(row.interval_ns for row in rows)
    return [
        Subject(
            "rank",
            f"rank {row.rank}",
            {
                "interval_ms": ms(row.interval_ns, row.source),
                "interval_over_average": Fact(
                    row.interval_ns / average - 1 if average > 0 else None,
                    "share",
                    f"average of {len(rows)} ranks",
                ),
            },
        )
        for row in rows
    ]


def stage_subjects(ranks: list[Rank], recording: Recording) -> list[Subject]:
    """Facts of each stage; stages are numbered from 0, in what users read from 1 on (as MindInsight does)."""
    times = _times(ranks, recording)
    flops = _flops(recording)
    average = mean(flops.values()) if len(flops) > 1 else None
    subjects = []
    for stage in sorted(set(times) | set(flops)):
        facts: dict[str, Fact] = {}
        if stage in times:
            computing = mean(part[0] for part in times[stage])
            communication = mean(part[1] for part in times[stage])
            facts |= {
                "stage_compute_ms": ms(computing),
                "stage_communication_ms": ms(communication),
                "stage_compute_over_communication": Fact(ratio(computing, communication), "ratio"),
            }
        rows = [row for row in recording.pipelines if row.stage == stage]
        if rows:
            whole = sum(row.stage_ns + row.receive_alone_ns for row in rows)
            alone = sum(row.collective_alone_ns for row in rows)
            facts |= {
                "collective_alone_share": share(alone, whole),
                "collective_alone_ms": ms(alone / len(rows)),
                "stage_ms": ms(whole / len(rows)),
            }
        if stage in flops and average:
            facts |= {
                "flops_over_average": Fact(flops[stage] / average - 1, "share"),
                "mflops": Fact(flops[stage], "MFLOP"),
            }
        subjects.append(Subject("stage", f"stage {stage + 1}", facts))
    return subjects


def pipeline_facts(ranks: list[Rank], recording: Recording) -> dict[str, Fact]:
    """How the stages differ, and what they wait to receive."""
    facts: dict[str, Fact] = {}
    times = _times(ranks, recording)
    if len(times) > 1:
        computing = {stage: mean(part[0] for part in parts) for stage, parts in times.items()}
        heaviest = max(computing, key=lambda stage: computing[stage])
        lightest = min(computing, key=lambda stage: computing[stage])
        spread = computing[heaviest] - computing[lightest]
        facts = {
            "stage_compute_spread_ms": ms(spread),
            "stage_compute_spread_share": share(spread, mean(computing.values())),
            "heaviest_stage": Fact(float(heaviest + 1), "stage"),
            "lightest_stage": Fact(float(lightest + 1), "stage"),
        }
    if recording.pipelines:
        alone = sum(row.receive_alone_ns for row in recording.pipelines)
        whole = sum(row.stage_ns + row.receive_alone_ns for row in recording.pipelines)
        facts["receive_alone_share"] = share(alone, whole)
        facts["receive_alone_ms"] = ms(alone / len(recording.pipelines))
    else:
        rows = [row for row in recording.steps if not row.is_stage and row.bubble_ns is not None]
        if rows:
            alone = sum(row.bubble_ns or 0 for row in rows)
            facts["receive_alone_share"] = share(alone, sum(row.step_ns for row in rows))
            facts["receive_alone_ms"] = ms(alone / len(rows))
    return facts


def _times(ranks: list[Rank], recording: Recording) -> Times:
    times: Times = {}
    if recording.pipelines:
        for row in recording.pipelines:
            times.setdefault(row.stage, []).append((row.computing_ns, row.communication_alone_ns))
    elif recording.stages:
        by_rank = {rank.rank: rank for rank in ranks}
        for stage, members in recording.stages.items():
            for member in members:
                if member in by_rank:
                    rank = by_rank[member]
                    pair = (intervals.total(rank.computing), intervals.total(rank.communication))
                    times.setdefault(stage, []).append(pair)
    else:
        # A stage row of the cluster table is a maximum over its ranks; the ranks' own rows are averaged instead.
        stages = _stage_rows(recording)
        for step in recording.steps:
            if not step.is_stage and len(step.ranks) == 1 and step.ranks[0] in stages:
                pair = (step.computing_ns, step.communication_ns)
                times.setdefault(stages[step.ranks[0]], []).append(pair)
    return times


def _stage_rows(recording: Recording) -> Mapping[int, int]:
    groups = sorted({row.ranks for row in recording.steps if row.is_stage and row.ranks})
    if len(groups) < 2:
        return {}
    return {rank: stage for stage, members in enumerate(groups) for rank in members}


def _flops(recording: Recording) -> dict[int, float]:
    stage_of = {row.rank: row.stage for row in recording.pipelines}
    found: dict[int, list[float]] = {}
    for row in recording.flops:
        if row.rank in stage_of:
            found.setdefault(stage_of[row.rank], []).append(row.mflops)
    return {stage: mean(values) for stage, values in found.items()}
