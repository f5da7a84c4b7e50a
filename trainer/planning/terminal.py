"""What `trainer memory` and `trainer screen` print for a person: results on stdout, remarks on stderr."""

from collections.abc import Sequence
from typing import Any

import click

from evalkit.console import say
from trainer.planning.accuracy import TIME
from trainer.planning.memory_page import accuracy_text, strategy_text
from trainer.planning.memory_report import MemoryReport, choice_text
from trainer.planning.pressure import PressureResult
from trainer.planning.screen_run import Calibration, ScreenReport

_MOST_COLUMNS = 8


def show_memory(report: MemoryReport) -> None:
    """The terms of each stage, what was set beside them, and the verdict on the last line."""
    say(strategy_text(report))
    terms = list(dict.fromkeys(term for stage in report.stages for term in stage.terms_mib))
    header = ["MiB", *(term.replace("_", " ") for term in terms), "total"]
    by_stage: list[Sequence[Any]] = [
        [
            f"stage {stage.stage}",
            *(f"{stage.terms_mib.get(term, 0):,.0f}" for term in terms),
            f"{stage.total_mib:,.0f}",
        ]
        for stage in report.stages
    ]
    if report.dry_runs:
        header.append("by dry run")
        by_stage = [
            [*row, f"{report.stage_mib(stage):,.0f}"]
            for row, stage in zip(by_stage, report.stages, strict=True)
        ]
    rows: list[Sequence[Any]] = [header, *by_stage]
    # Few stages stand side by side, many below each other.
    if len(report.stages) <= _MOST_COLUMNS:
        rows = list(zip(*rows, strict=True))
    _table(rows)
    for stage, (run, _) in report.dry_runs.items():
        if run.doubt:
            click.echo(f"stage {stage}: {run.doubt}")
    for row in report.residuals:
        if row.measured_mib is not None:
            click.echo(
                f"stage {row.stage} {row.term} ({row.kind}): predicted {row.predicted_mib:,.0f}, measured {row.measured_mib:,.0f} MiB, "
                f"residual {row.residual_mib:+,.0f} MiB"
            )
    if report.frontier is not None:
        for item in report.frontier.candidates:
            click.echo(f"recompute {item.name}: {item.bytes_per_flop:.3g} bytes saved a FLOP")
        for stage, choice in report.choices.items():
            click.echo(f"stage {stage}: cheapest recomputation that fits: {choice_text(choice)}")
    if report.hccl_buffer_advice_mib is not None:
        say(f"HCCL_BUFFSIZE advised for these messages: {report.hccl_buffer_advice_mib} MiB")
    if report.graph is not None:
        click.echo(
            f"graph: peak {report.graph.plain.peak_bytes / 2**20:,.2f} MiB at {report.graph.plain.peak_at}; fused "
            f"{report.graph.after_fusion.peak_bytes / 2**20:,.2f} MiB"
        )
        if report.graph.gaps is not None:
            click.echo(f"graph: {report.graph.gaps}")
    say(accuracy_text())
    if report.verdict is not None:
        memory_gib = report.plan.device.memory_gib or 0.0
        click.echo(f"verdict: {report.verdict} ({report.peak_mib / 1024:.1f} of {memory_gib:g} GiB)")


def _table(rows: Sequence[Sequence[Any]]) -> None:
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            str(value).ljust(width) if column == 0 else str(value).rjust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def show_screen(report: ScreenReport, top: int) -> None:
    """The calibration, what was dropped, and the first `top` strategies."""
    found = report.screening
    if report.calibration is not None:
        _show_calibration(report.calibration)
    say(f"{found.tried:,} strategies for {found.devices:,} devices, {len(found.ranked):,} fit")
    for reason, count in sorted(found.dropped.items(), key=lambda item: -item[1]):
        say(f"  {count:,} dropped: {reason}")
    if found.same_time:
        say(f"  {found.same_time:,} left out: take the time of a leaner one")
    rows: list[Sequence[Any]] = [
        [
            "group",
            "s a step",
            "±",
            "GiB",
            "MFU",
            "data",
            "model",
            "pipeline",
            "rows",
            "micro-batches",
            "recompute",
            "ZeRO",
            "v",
        ]
    ]
    for item in found.ranked[:top]:
        cut = item.strategy
        recompute = cut.recompute if isinstance(cut.recompute, str) else f"{cut.recompute.segments} layers"
        rows.append(
            [
                item.group,
                f"{item.total_s:,.4g}",
                f"{item.error_s:,.2g}",
                f"{item.memory_gib:,.1f}{'!' if item.close else ''}",
                f"{100 * item.mfu:.1f} %",
                cut.data,
                cut.model,
                cut.pipeline,
                cut.micro_batch_size,
                cut.micro_batches,
                recompute,
                cut.zero_stage,
                cut.interleave,
            ]
        )
    _table(rows)
    say(
        f"On public measurements this kind of model was {100 * TIME.relative_error:.1f} % off ({TIME.rows} runs, {TIME.on}; {TIME.note}); "
        f"here {100 * found.relative_error:.1f} % are assumed"
    )
    if found.communication == "not counted" and found.devices > 1:
        say("communication costs nothing here: CLUSTER.yaml has no links; add them, or --calibrate")
    if any(item.close for item in found.ranked[:top]):
        say("!: so near the device's memory that only a run decides")
    first = [item for item in found.ranked if item.group == 1]
    if len(first) > 1:
        unseen = f", {top} of them shown" if len(first) > top else ""
        say(
            f"group 1 holds {len(first):,} strategies{unseen}: this model can't tell them apart, so run them and measure; the "
            "first row is no winner"
        )


def _show_calibration(calibration: Calibration) -> None:
    for name, fit in (("time model", calibration.times), ("textbook", calibration.textbook)):
        recall = ", ".join(f"top {k} {100 * value:.0f} %" for k, value in fit.top_recall.items())
        say(
            f"{name} ({', '.join(fit.parts)}): {len(fit.measured)} runs, error {100 * fit.relative_error_in_sample:.1f} % in sample, "
            f"{100 * fit.relative_error:.1f} % left out; Spearman {_shown(fit.spearman)} in sample, "
            f"{_shown(fit.spearman_left_out)} left out; recall left out: {recall}"
        )
    if calibration.memory is not None:
        memory_fit = calibration.memory
        constants = ", ".join(f"{kind} {value:.1f} GiB" for kind, value in memory_fit.constant_gib.items())
        say(
            f"memory: {memory_fit.rows} runs, error {100 * memory_fit.mean_error:.1f} %, beside the terms {constants}; "
            f"{len(memory_fit.missed)} of {memory_fit.out_of_memory_rows} out-of-memory runs missed, "
            f"{len(memory_fit.false_alarms)} false alarms"
        )
    for doubt in calibration.doubts:
        say(f"doubtful: {doubt}")


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.2f}"


def show_pressure(result: PressureResult) -> None:
    """Each trial, and the largest that fits."""
    for trial in result.trials:
        peak = "unknown" if trial.peak_mib is None else f"{trial.peak_mib:,.0f} MiB"
        click.echo(
            f"{result.vary} {trial.value}: {'fits' if trial.fits else 'does not fit'}, peak {peak} ({trial.why})"
        )
    growth = "unknown" if result.growth_mib is None else f"{result.growth_mib:,.3f}"
    click.echo(f"a {result.unit}: {growth} MiB measured, {result.predicted_growth_mib:,.3f} MiB predicted")
    click.echo(f"largest {result.vary} that fits in {result.budget_mib:,.0f} MiB: {result.largest or 'none'}")
