"""`trainer memory` and `trainer screen`: plan on paper before a cluster is booked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalkit.console import say
from evalkit.errors import ExitCode, InputError
from evalkit.runs.interruption import terminable

if TYPE_CHECKING:
    from trainer.planning.memory_report import MemoryReport
    from trainer.planning.screen_run import Calibration, ScreenReport

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
_VERDICTS = {
    None: ExitCode.OK,
    "fits": ExitCode.OK,
    "too close": ExitCode.INCONCLUSIVE,
    "doesn't fit": ExitCode.FAIL,
}


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of the plan.")
@click.option(
    "--dry-run",
    "dry_runs",
    multiple=True,
    metavar="[STAGE=]LOG",
    help="Log of MindSpore's dry run of a stage's rank; it takes the plan's place.",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path),
    help="An .ir of MS_DEV_SAVE_GRAPHS or a .mindir: its static plan.",
)
@click.option(
    "--recompute", is_flag=True, help="Rank what could be recomputed, and find the cheapest set that fits."
)
@click.option(
    "--pressure",
    type=click.Choice(["batch", "sequence"]),
    help="Run real steps on this machine: the largest batch or sequence that fits.",
)
@click.option(
    "--budget-mib", type=click.FloatRange(min=1), help="With --pressure: the memory that a process may take."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write: memory.html and memory.json.")
@_JSON
def memory(
    config: Path,
    changes: tuple[str, ...],
    dry_runs: tuple[str, ...],
    graph: Path | None,
    recompute: bool,
    pressure: str | None,
    budget_mib: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Say what CONFIG needs on each rank: a plan, a Hugging Face config.json, or a training configuration.

    Exit code 0 where it fits (or no memory is named), 1 where it doesn't, 3 where only the prediction's error decides.
    """
    if out is not None and out.exists():
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    if pressure is not None:
        return _pressure(config, changes, pressure, budget_mib, out, as_json=as_json)
    if budget_mib is not None:
        raise InputError("--budget-mib: belongs to --pressure; leave it out, or set device.memory_gib")
    from trainer.planning.memory_page import write_memory_report
    from trainer.planning.memory_run import plan_memory

    report = plan_memory(config, changes, dry_runs=dry_runs, graph=graph, recompute=recompute)
    if out is not None:
        write_memory_report(report, out)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        _show_memory(report)
        if out is not None:
            click.echo(f"memory: {out}")
    return int(_VERDICTS[report.verdict])


def _show_memory(report: "MemoryReport") -> None:
    from trainer.planning.memory_page import accuracy_text, strategy_text
    from trainer.planning.memory_report import choice_text

    say(strategy_text(report))
    terms = list(dict.fromkeys(term for stage in report.stages for term in stage.terms_mib))
    rows: list[Sequence[Any]] = [["MiB", *(f"stage {stage.stage}" for stage in report.stages)]]
    rows += [
        [term.replace("_", " "), *(f"{stage.terms_mib.get(term, 0):,.0f}" for stage in report.stages)]
        for term in terms
    ]
    rows.append(["total", *(f"{stage.total_mib:,.0f}" for stage in report.stages)])
    if report.dry_runs:
        rows.append(["by dry run", *(f"{report.stage_mib(stage):,.0f}" for stage in report.stages)])
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


@click.command()
@click.argument("cluster", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--calibrate",
    "tables",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Measured runs: a .csv or .jsonl table, or a run folder of `trainer train`.",
)
@click.option(
    "--map", "map_path", type=click.Path(path_type=Path), help="YAML: how to read a table of others."
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many to show and write."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write: screen.json, strategies.csv and ready fragments.",
)
@_JSON
def screen(
    cluster: Path,
    model: Path,
    tables: tuple[Path, ...],
    map_path: Path | None,
    top: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Rank the ways to spread MODEL.yaml over CLUSTER.yaml; exit code 1 where none fits into memory."""
    if out is not None and out.exists():
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    from trainer.planning.screen_run import run_screen, write_screen_report

    report = run_screen(cluster, model, tables=tables, map_path=map_path)
    if out is not None:
        write_screen_report(report, out, top)
    if as_json:
        click.echo(json.dumps(report.to_json(top), ensure_ascii=False, allow_nan=False))
    else:
        _show_screen(report, top)
        if out is not None:
            click.echo(f"screen: {out}")
    return int(ExitCode.OK if report.screening.ranked else ExitCode.FAIL)


def _show_screen(report: "ScreenReport", top: int) -> None:
    found = report.screening
    if report.calibration is not None:
        _show_calibration(report.calibration)
    say(f"{found.tried:,} strategies for {found.devices:,} devices, {len(found.ranked):,} fit")
    for reason, count in sorted(found.dropped.items(), key=lambda item: -item[1]):
        say(f"  {count:,} dropped: {reason}")
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
    from trainer.planning.accuracy import TIME

    say(
        f"On public measurements this kind of model was {100 * TIME.relative_error:.1f} % off ({TIME.rows} runs, {TIME.on}; {TIME.note}); "
        f"here {100 * found.relative_error:.1f} % are assumed"
    )
    if any(item.close for item in found.ranked[:top]):
        say("!: so near the device's memory that only a run decides")
    if len({item.group for item in found.ranked[:top]}) < len(found.ranked[:top]):
        say("strategies of one group can't be told apart by this model: run them")


def _show_calibration(calibration: "Calibration") -> None:
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


def _pressure(
    config: Path,
    changes: tuple[str, ...],
    vary: str,
    budget_mib: float | None,
    out: Path | None,
    *,
    as_json: bool,
) -> int:
    from evalkit.files import folder_atomic, write_json_atomic
    from trainer.planning.pressure import press

    with terminable():  # so that a trial never outlives its parent
        result = press(config, changes, "sequence" if vary == "sequence" else "batch", budget_mib=budget_mib)
    if out is not None:
        with folder_atomic(out) as staging:
            write_json_atomic(staging / "pressure.json", result.to_json())
    if as_json:
        click.echo(json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        for trial in result.trials:
            peak = "unknown" if trial.peak_mib is None else f"{trial.peak_mib:,.0f} MiB"
            click.echo(
                f"{result.vary} {trial.value}: {'fits' if trial.fits else 'does not fit'}, peak {peak} ({trial.why})"
            )
        growth = "unknown" if result.growth_mib is None else f"{result.growth_mib:,.3f}"
        click.echo(
            f"a {result.unit}: {growth} MiB measured, {result.predicted_growth_mib:,.3f} MiB predicted"
        )
        click.echo(
            f"largest {result.vary} that fits in {result.budget_mib:,.0f} MiB: {result.largest or 'none'}"
        )
    return int(ExitCode.OK if result.largest else ExitCode.FAIL)
