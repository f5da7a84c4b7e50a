"""`trainer doctor`: what is wrong, with evidence and the next action."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from trainer.findings import Finding, report


@click.group()
def doctor() -> None:
    """Find out what is wrong; a finished check exits 0 whatever it found."""


@doctor.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def evaluation(first: Path, second: Path, as_json: bool) -> None:
    """Whether the scores of two evaluations may be compared: FIRST and SECOND are run folders or descriptions."""
    from evalkit.training.description import read_description
    from trainer.diagnosis.evaluation import check_evaluations

    show(check_evaluations(read_description(first), read_description(second)), as_json=as_json)


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings for a person, or as the JSON object of the contract."""
    if as_json:
        click.echo(json.dumps(report(findings), ensure_ascii=False))
        return
    if not findings:
        click.echo("nothing found")
    for finding in findings:
        click.echo(f"{finding.severity}: {finding.rule}: {finding.summary}")
        for item in finding.evidence:
            value = "unknown" if item.value is None else item.value
            where = f" ({item.where})" if item.where else ""
            click.echo(f"  {item.name} = {value}{' ' + item.unit if item.unit else ''}{where}")
        for rival in finding.rivals:
            click.echo(f"  or: {rival.rule}: {rival.because}")
        click.echo(f"  do: {finding.action}")
