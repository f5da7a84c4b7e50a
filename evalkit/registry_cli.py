"""Commands around the registry: `alias`, `promote`, `history`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalkit.console import say
from evalkit.errors import InputError
from evalkit.output import print_json

if TYPE_CHECKING:
    from evalkit.integrations.mlflow import MlflowTarget
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.registry_rows import AuditEntry

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def alias() -> None:
    """Names of released models: what each demands of a promotion, and what it holds."""


@alias.command("set")
@click.argument("name")
@click.option("--policy", required=True, type=_PATH, help="Policy file, or a scenario that holds the policy.")
@click.option("--scenario", required=True, type=_PATH, help="Scenario that must have been measured.")
@_JSON
def alias_set(name: str, policy: Path, scenario: Path, as_json: bool) -> None:
    """Bind NAME: from now on it moves only on a PASS under this policy in a run of this scenario.

    Both are bound by content: whoever edits one can't promote by it.
    """
    from evalkit.runs.promotion import bind_alias

    entry = bind_alias(name, policy, scenario)
    if as_json:
        print_json(entry.to_dict())
        return
    click.echo(f"alias: {name}")
    click.echo(f"policy: {entry.policy_sha256}")
    click.echo(f"scenario: {entry.scenario_sha256}")


@alias.command("show")
@click.argument("name", required=False)
@_JSON
def alias_show(name: str | None, as_json: bool) -> None:
    """Show aliases (or one) and the audit of their bindings and promotions."""
    from evalkit.runs.promotion import aliases_and_audit

    aliases, audit = aliases_and_audit(name)
    if as_json:
        print_json(
            {"aliases": [item.to_dict() for item in aliases], "audit": [item.to_dict() for item in audit]}
        )
        return
    from evalkit.report.terminal_registry import print_aliases, print_audit

    print_aliases(aliases)
    print_audit(audit)


@click.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--as", "name", required=True, metavar="NAME", help="The alias.")
@click.option(
    "--expect", metavar="DIGEST", help="Refuse unless the alias holds this model digest now, or `none`."
)
@click.option(
    "--force", metavar="REASON", help="Promote without the PASS; every later report shows the reason."
)
@click.option("--mlflow", metavar="URI", help="Move the alias in this MLflow registry too.")
@_JSON
def promote(
    run_folder: Path, name: str, expect: str | None, force: str | None, mlflow: str | None, as_json: bool
) -> None:
    """Let an alias hold the model that RUN measured: only if it passed under what the alias demands.

    Compare-and-swap: of several at once one wins; the others exit 1, as does a refused one.
    """
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.promotion import promote as promote_run

    folder, target = RunFolder(run_folder), None
    if mlflow is not None:
        target = mlflow_target(mlflow)
    done = promote_run(folder, name, expect=expect, force=force)
    entry = done.entry
    for note in done.notes:
        say(f"note: {note}")
    if target is not None:
        _mirror(target, folder, entry)
    if as_json:
        print_json(entry.to_dict())
        return
    forced = f" (forced: {entry.reason})" if entry.action == "force" else ""
    click.echo(f"promoted: {name} {entry.previous_digest or 'none'} -> {entry.model_digest}{forced}")


@click.command()
@click.option("--metric", metavar="NAME", help="Show this metric with its intervals.")
@click.option("--out", type=_PATH, help="Write the plot to this SVG file (needs --metric).")
@_JSON
def history(metric: str | None, out: Path | None, as_json: bool) -> None:
    """List the recorded runs with their verdicts, or plot a metric over them with intervals."""
    from evalkit.files import write_bytes_atomic
    from evalkit.report.history import history_svg, print_runs, print_series
    from evalkit.runs.history import load_history

    if out is not None and metric is None:
        raise InputError("--out: a plot shows one metric; name it with --metric NAME")
    if out is not None and out.suffix.lower() != ".svg" and not out.is_dir():
        raise InputError(f"--out {out}: the plot is an SVG; let the name end in .svg")
    found = load_history(metric)
    if out is not None:
        write_bytes_atomic(out, history_svg(found).encode())
    if as_json:
        print_json(found.to_dict())
    elif metric is None:
        print_runs(found)
    else:
        print_series(found)
        if out is not None:
            click.echo(f"plot: {out}")


def _mirror(target: "MlflowTarget", folder: "RunFolder", entry: "AuditEntry") -> None:
    from evalkit.integrations.mlflow import MlflowError

    try:
        target.move_alias(folder, entry)
    except MlflowError as error:
        say(f"warning: {error}; the promotion stands in the registry, but MLflow wasn't told")


def mlflow_target(uri: str) -> "MlflowTarget":
    """The MLflow at `uri`.

    Raises:
        InputError: MLflow isn't installed.
    """
    from evalkit.integrations.mlflow import MlflowTarget

    return MlflowTarget(uri)


def tell_mlflow(target: "MlflowTarget", folder: "RunFolder") -> None:
    """Log a finished run; where MLflow fails, one line on stderr says so, and nothing else changes."""
    from evalkit.integrations.mlflow import MlflowError

    try:
        target.log_run(folder)
    except MlflowError as error:
        say(f"warning: {error}; the run and its verdict are whole in {folder.path}")


registry_commands = (alias, promote, history)
