"""`trainer pareto`: which setting is the best trade of speed against score."""

import json
from pathlib import Path

import click

from evalkit.errors import ExitCode
from evalkit.runs.interruption import terminable
from trainer.cli_paths import PATH


@click.command()
@click.argument("space", type=PATH)
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="Folder of the runs, pareto.json and pareto.html; a search that was broken off goes on in its own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def pareto(space: Path, out: Path, as_json: bool) -> int:
    """Find the settings of SPACE.yaml that nothing beats on both speed and score; exit code 1 where there are none.

    SPACE.yaml names fields of a training configuration to try by real runs, or a table of runs.
    """
    from trainer.pareto.front import shown_number
    from trainer.pareto.report import run_pareto

    with terminable():
        report = run_pareto(space, out)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        for item in report.front:
            assert item.score is not None and item.speed is not None and item.front_share is not None
            click.echo(
                f"front  {item.label}: {item.n} runs, {report.space.score.metric} {shown_number(item.score.mean)}, "
                f"{report.space.speed.metric} {shown_number(item.speed.mean)}, on the front in {item.front_share:.0%} of redraws"
            )
        for line in report.summary:
            click.echo(line)
        click.echo(f"page: {out / 'pareto.html'}")
    return int(ExitCode.OK if report.front else ExitCode.FAIL)
