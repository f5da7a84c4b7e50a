"""Commands that turn other people's data into ours: `evalkit import` and `evalkit ingest`."""

from pathlib import Path

import click

from evalkit.console import say
from evalkit.output import print_json

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


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
