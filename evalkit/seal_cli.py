"""Commands around the seal of a run: `verify` and `sign`."""

from pathlib import Path

import click

from evalkit.console import say
from evalkit.errors import ExitCode
from evalkit.output import print_json

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--key", metavar="PUBLIC", type=_PATH, help="Demand a signature by this Ed25519 key (PEM).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(run_folder: Path, key: Path | None, as_json: bool) -> int:
    """Check the seal, recompute results, comparison and verdict, say what differs."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.signature import signed_state, verify_signed
    from evalkit.runs.verify import verify as verify_run

    folder = RunFolder(run_folder)
    differences = verify_run(folder) if key is None else verify_signed(folder, key)
    signature = signed_state(folder, key, differences)
    if as_json:
        print_json(
            {
                "verified": not differences,
                "differences": [str(item) for item in differences],
                "signature": signature,
            }
        )
    else:
        for item in differences:
            click.echo(f"differs: {item}")
        if signature is not None:
            click.echo(f"signature: {signature}")
        click.echo("verified: no" if differences else "verified: yes")
    return int(ExitCode.FAIL if differences else ExitCode.OK)


@click.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--key", required=True, metavar="PRIVATE", type=_PATH, help="Ed25519 private key (PEM).")
def sign(run_folder: Path, key: Path) -> None:
    """Sign the seal of a run that verifies; `evalkit verify RUN --key PUBLIC` checks it."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.signature import sign_run

    folder = RunFolder(run_folder)
    click.echo(f"signed: by key {sign_run(folder, key)}")
    if folder.reports.is_dir():
        say(f"the reports don't name the key yet; `evalkit report {run_folder}` writes them again")


seal_commands = (verify, sign)
