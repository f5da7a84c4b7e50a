"""Commands around data files: `evalkit import`, `evalkit ingest` and `evalkit schema`."""

from pathlib import Path
from typing import Literal

import click

from evalkit.console import say
from evalkit.output import print_json

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def ingest() -> None:
    """Turn production logs into what the next evaluation stands on; see docs/ingest.md."""


_MAP = click.option("--map", "map_path", type=_PATH, required=True, help="Which field of the log holds what.")


@ingest.command()
@click.argument("file", type=_PATH)
@_MAP
@click.option("--out", type=_PATH, required=True, help="Folder to create.")
@_JSON
def traffic(file: Path, map_path: Path, out: Path, as_json: bool) -> None:
    """Conversations (JSON lines or CSV) → a resampling target and candidate dialogues, personal data masked by rule."""
    from evalkit.feedback.traffic import ACCOUNT, ingest_traffic

    found = ingest_traffic(file, map_path, out)
    if as_json:
        print_json(found.to_dict())
        return
    click.echo(f"traffic: {found.conversations} conversations, {found.texts} texts → {out}")
    if found.first is not None:
        click.echo(f"  from {found.first} to {found.last}")
    masked = ", ".join(f"{kind} {count}" for kind, count in found.masked.items()) or "nothing"
    click.echo(f"  masked: {masked}")
    for reason, count in {**found.counts, **found.left_out}.items():
        click.echo(f"  {count}: {reason}")
    click.echo(f"  candidate dialogues: {found.dialogues}, and {found.to_complete} that expect nothing yet")
    say(f"rules don't find all personal data: read {out} before you pass it on; {ACCOUNT} holds the counts")


@ingest.command()
@click.argument("file", type=_PATH)
@_MAP
@click.option("--out", type=_PATH, required=True, help="Calibration history to write (CSV).")
@_JSON
def outcomes(file: Path, map_path: Path, out: Path, as_json: bool) -> None:
    """Online figures by released model → the calibration history of a business figure."""
    from evalkit.feedback.outcomes import ingest_outcomes

    found = ingest_outcomes(file, map_path, out)
    if as_json:
        print_json(found.to_dict())
        return
    click.echo(f"outcomes: {found.rows_read} rows, {len(found.rows)} releases with both figures → {out}")
    for release, reason in found.left_out.items():
        click.echo(f"  left out {release}: {reason}")


@click.command("import")
@click.argument("kind", type=click.Choice(["sgd", "crosswoz", "rasa", "tau2"]))
@click.argument("source", type=_PATH)
@click.option("--out", type=_PATH, required=True, help="Folder to create.")
@_JSON
def import_command(kind: str, source: Path, out: Path, as_json: bool) -> None:
    """Convert existing test dialogues into dialogue files; what can't be converted is counted and named.

    sgd: dialogues_*.json or a folder. crosswoz: one split, JSON or zip. rasa: test stories or end-to-end tests, with the
    domain in the same folder. tau2: tasks.json or a domain's folder.
    """
    from evalkit.scenario.importers.convert import ACCOUNT, import_dialogues

    found = import_dialogues(kind, source, out)
    if as_json:
        print_json(found.to_dict())
        return
    click.echo(f"{kind}: {len(found.converted)} of {found.found} dialogues converted → {out}")
    for reason, count in found.reasons().items():
        click.echo(f"  skipped {count}: {reason}")
    for what, count in found.unchecked.items():
        click.echo(f"  not checked {count}: {what}")
    if found.weak:
        click.echo(f"  weak {len(found.weak)}: an agent that only echoes the user passes them")
    say(f"{out / ACCOUNT} names each of them")


@click.command()
@click.argument("kind", type=click.Choice(["dialogue"]))
def schema(kind: Literal["dialogue"]) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    from evalkit.scenario.editor_schema import editor_schema

    print_json(editor_schema(kind))


data_commands: tuple[click.Command, ...] = (import_command, ingest, schema)
