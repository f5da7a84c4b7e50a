"""`trainer spikes`: find loss spikes in training logs and say what caused them."""

import json
from pathlib import Path

import click

from evalkit.errors import InputError
from trainer.cli_paths import PATH
from trainer.doctor_cli import show


@click.command()
@click.argument("logs", metavar="LOG…", nargs=-1, required=True, type=PATH)
@click.option(
    "--plog",
    "plogs",
    metavar="FILE",
    multiple=True,
    type=PATH,
    help="A log of CANN, HCCL or a process, whose errors are joined by time; may be given several times.",
)
@click.option(
    "--trace",
    type=PATH,
    help="A profiler's folder, whose verdicts are told beside the spikes.",
)
@click.option(
    "--out",
    type=PATH,
    help="Folder to write spikes.html and findings.json into; must not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def spikes(
    logs: tuple[Path, ...], plogs: tuple[Path, ...], trace: Path | None, out: Path | None, as_json: bool
) -> None:
    """Find loss spikes in LOG…, in the order in which they were written, and rank their causes."""
    from trainer.diagnosis.spikes import diagnose_spikes
    from trainer.diagnosis.spikes.page import write_report

    if out is not None and out.exists():  # before seconds of reading
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    report = diagnose_spikes(logs, plogs, trace)
    if out is not None:
        write_report(report, out)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
        return
    show(report.findings, as_json=False)
    if out is not None:
        click.echo(f"report: {out / 'spikes.html'}")
