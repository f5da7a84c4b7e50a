"""`trainer stress`: what a fault costs, and whether the training comes back from it."""

import json
from pathlib import Path

import click

from evalkit.errors import ExitCode
from evalkit.runs.interruption import terminable
from trainer.cli_paths import PATH


@click.command()
@click.argument("plan", type=PATH)
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="Folder of all runs, stress.json and stress.md; a test that was broken off goes on in its own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def stress(plan: Path, out: Path, as_json: bool) -> int:
    """Train once undisturbed and once under the faults of PLAN.yaml; exit code 1 where one isn't survived as promised.

    Workers are started by msrun on this machine. They kill themselves, damage checkpoints, fill the disk or are slow.
    """
    from trainer.stress.plan import load_stress
    from trainer.stress.run import run_stress
    from trainer.stress.table import stress_table

    described = load_stress(plan)
    with terminable():  # so that no worker outlives its supervisor
        report = run_stress(described, out)
    table = stress_table(report)
    (out / "stress.md").write_text(table, encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(table)
        click.echo(f"report: {out / 'stress.json'}")
    return int(ExitCode.OK if report.as_promised else ExitCode.FAIL)
