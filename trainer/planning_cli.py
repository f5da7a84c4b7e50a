"""`trainer memory` and `trainer screen`: plan on paper before a cluster is booked."""

import json
from pathlib import Path

import click

from evalkit.errors import ExitCode, InputError
from evalkit.runs.interruption import terminable

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
        if dry_runs or graph is not None or recompute:
            raise InputError(
                "--pressure: runs instead of planning; leave --dry-run, --graph and --recompute out"
            )
        return _pressure(config, changes, pressure, budget_mib, out, as_json=as_json)
    if budget_mib is not None:
        raise InputError("--budget-mib: belongs to --pressure; leave it out, or set device.memory_gib")
    from trainer.planning.memory_page import write_memory_report
    from trainer.planning.memory_run import plan_memory
    from trainer.planning.terminal import show_memory

    report = plan_memory(config, changes, dry_runs=dry_runs, graph=graph, recompute=recompute)
    if out is not None:
        write_memory_report(report, out)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        show_memory(report)
        if out is not None:
            click.echo(f"memory: {out}")
    return int(_VERDICTS[report.verdict])


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
    from trainer.planning.terminal import show_screen

    report = run_screen(cluster, model, tables=tables, map_path=map_path)
    if out is not None:
        write_screen_report(report, out, top)
    if as_json:
        click.echo(json.dumps(report.to_json(top), ensure_ascii=False, allow_nan=False))
    else:
        show_screen(report, top)
        if out is not None:
            click.echo(f"screen: {out}")
    return int(ExitCode.OK if report.screening.ranked else ExitCode.FAIL)


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
    from trainer.planning.terminal import show_pressure

    with terminable():  # so that a trial never outlives its parent
        result = press(config, changes, "sequence" if vary == "sequence" else "batch", budget_mib=budget_mib)
    if out is not None:
        with folder_atomic(out) as staging:
            write_json_atomic(staging / "pressure.json", result.to_json())
    if as_json:
        click.echo(json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        show_pressure(result)
    return int(ExitCode.OK if result.largest else ExitCode.FAIL)
