"""`trainer timeline`: where the time of a profiled training goes."""

import json
from pathlib import Path

import click

from evalkit.console import say
from evalkit.errors import InputError
from trainer.cli_paths import PATH


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--out", type=PATH, required=True, help="Folder to write; must not exist.")
@click.option(
    "--ranks",
    "rank_map",
    type=PATH,
    help="YAML of `file pattern: rank`, for traces that don't say whose they are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object on stdout.")
def timeline(folder: Path, out: Path, rank_map: Path | None, as_json: bool) -> None:
    """Say where the time goes in DIR, a profiler's output folder (or one trace file); nothing is run.

    Writes cube.parquet, heatmap.html, trace.json (for ui.perfetto.dev) and findings.json.
    """
    from trainer.regular_file import shown_path
    from trainer.timeline.ranks import read_rank_map
    from trainer.timeline.run import analyse, write_analysis

    ranks = read_rank_map(rank_map) if rank_map is not None else None
    if out.exists():  # before minutes of reading
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    analysis = analyse(folder, ranks)
    write_analysis(analysis, out, shown_path(Path(folder.resolve().name)))
    if as_json:
        click.echo(json.dumps(analysis.to_json(), ensure_ascii=False, allow_nan=False))
        return
    for note in analysis.notes():
        say(f"note: {note}")
    for line in analysis.recording.quarantine.lines():
        say(f"not trusted: {line}")
    for finding in analysis.findings:
        click.echo(f"{finding.severity}: {finding.rule}: {finding.summary}")
        click.echo(f"  do: {finding.action}")
    if not analysis.findings:
        click.echo("no rule found anything")
    click.echo(f"report: {out / 'heatmap.html'}")
