"""`trainer doctor`: what is wrong, with evidence and the next action."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from evalkit.errors import ExitCode, InputError
from evalkit.files import write_json_atomic
from trainer.cli_paths import PATH
from trainer.findings import Finding, report
from trainer.regular_file import require_regular, why_not_text

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group()
def doctor() -> None:
    """Find out what is wrong; a finished check exits 0 whatever it found (rank-table: 1 for an error)."""


@doctor.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@_JSON
def evaluation(first: Path, second: Path, as_json: bool) -> None:
    """Whether the scores of two evaluations may be compared: FIRST and SECOND are run folders or descriptions."""
    from evalkit.training.description import read_description
    from trainer.diagnosis.evaluation import check_evaluations

    show(check_evaluations(read_description(first), read_description(second)), as_json=as_json)


@doctor.command("rank-table")
@click.argument("file", type=PATH, required=False)
@click.option("--generate", is_flag=True, help="Write a table of template 1.0 instead of checking one.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="NAME=ADDRESS,ADDRESS",
    help="With --generate: a server and its device addresses, in the order of the device ids.",
)
@click.option("--out", type=PATH, help="With --generate: the file to write; default: stdout.")
@_JSON
def rank_table(
    file: Path | None, generate: bool, servers: tuple[str, ...], out: Path | None, as_json: bool
) -> int:
    """Check FILE, a rank table of any template (1.0, 1.2, 2.0, legacy, global); exit 1 where an error was found."""
    from trainer.diagnosis.rank_table import check_rank_table, generate_rank_table

    if generate:
        if file is not None or as_json:
            raise InputError("--generate: takes neither a FILE to check nor --json; give --server and --out")
        table = generate_rank_table(_server_addresses(servers))
        if out is None:
            click.echo(json.dumps(table, indent=2))
        elif out.exists():
            raise InputError(f"{out}: exists already; remove it or choose another file")
        else:
            write_json_atomic(out, table)
            click.echo(f"rank table: {out}")
        return int(ExitCode.OK)
    if file is None:
        raise InputError("rank-table: give a FILE to check, or --generate")
    if servers or out is not None:
        raise InputError("--server, --out: belong to --generate; leave them out to check a file")
    found = check_rank_table(file)
    facts: dict[str, Any] = {"template": found.template, "ranks": found.ranks, "servers": found.servers}
    show(found.findings, as_json=as_json, valid=found.valid, **facts)
    if not as_json:
        verdict = "valid" if found.valid else "NOT VALID"
        click.echo(f"{verdict}: template {found.template}, {found.ranks} ranks, {found.servers} servers")
    return int(ExitCode.OK if found.valid else ExitCode.FAIL)


@doctor.command()
@click.argument("file", type=PATH, required=False)
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="NAME=VERSION",
    help="A version: mindformers, mindspore, cann or driver.",
)
@_JSON
def environment(file: Path | None, versions: tuple[str, ...], as_json: bool) -> None:
    """Check this process's variables and versions, or those in FILE (the output of `env` and `pip freeze`)."""
    from trainer.diagnosis.environment import check_environment, read_settings
    from trainer.diagnosis.versions import COMPONENTS, installed_versions

    if file is None:
        variables, known = dict(os.environ), installed_versions(os.environ)
    else:
        variables, known = read_settings(file)
    for text in versions:
        name, equals, version = text.partition("=")
        if name not in COMPONENTS or not equals or not version:
            raise InputError(f"--version {text}: NAME=VERSION is needed, NAME one of {', '.join(COMPONENTS)}")
        known[name] = version
    findings = check_environment(variables, known, here=file is None)
    show(findings, as_json=as_json, versions=known)


@doctor.command()
@click.argument("text", metavar="TEXT|FILE")
@_JSON
def oom(text: str, as_json: bool) -> None:
    """Name the cause of an out-of-memory error by its numbers. TEXT may be a file with the message, or - for stdin."""
    from trainer.diagnosis.out_of_memory import diagnose_out_of_memory

    show(diagnose_out_of_memory(_message(text)), as_json=as_json)


@doctor.command()
@click.argument("folder", metavar="LOGDIR", type=PATH)
@_JSON
def distributed(folder: Path, as_json: bool) -> None:
    """Say why a distributed job failed, from the logs of its processes below LOGDIR."""
    from trainer.diagnosis.distributed import diagnose_distributed

    found = diagnose_distributed(folder)
    show(
        found.findings,
        as_json=as_json,
        missing_ranks=found.missing_ranks,
        files_read=[str(path) for path in found.files],
        files_skipped=[{"file": str(path), "because": why} for path, why in found.skipped],
        ranks=list(found.ranks),
    )


def show(
    findings: Sequence[Finding], *, as_json: bool, missing_ranks: Iterable[int] = (), **further: Any
) -> None:
    """Print findings for a person, or as the JSON object of the contract (with the `further` fields)."""
    if as_json:
        fields = report(findings, missing_ranks=missing_ranks, **further)
        click.echo(json.dumps(fields, ensure_ascii=False, allow_nan=False))
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


def _server_addresses(servers: tuple[str, ...]) -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for text in servers:
        name, equals, rest = text.partition("=")
        listed = [item.strip() for item in rest.split(",")]
        if not name or not equals or not all(listed):
            raise InputError(f"--server {text}: NAME=ADDRESS,ADDRESS is needed")
        if name in addresses:
            raise InputError(f"--server {name}: given twice; give all its addresses at once")
        addresses[name] = listed
    return addresses


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a whole message is too long for a file's name
        return False


def _log_text(path: Path) -> str:
    """The text of a log; bytes that aren't UTF-8 (cut characters, other programs' output) are replaced, not refused."""
    try:
        why = why_not_text(path)
        if why and why != "empty":
            raise InputError(f"{path}: {why}; the message as UTF-8 text is needed")
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a file is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _message(text: str) -> str:
    if not text:
        raise InputError("the message is empty; is a variable of the shell unset?")
    if text == "-":
        message = sys.stdin.read()
    elif _exists(text):
        require_regular(Path(text))
        message = _log_text(Path(text))
    elif not any(character.isspace() for character in text):
        raise InputError(f"{text}: no such file; give a file, - for stdin, or the message itself in quotes")
    else:
        message = text
    if not message.strip():
        raise InputError("the message is empty; give the text of the out-of-memory error")
    return message
