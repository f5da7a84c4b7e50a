"""The `evalkit` command line: each command is a thin shell over a function."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalkit.console import progress_bars, run, say
from evalkit.data_cli import data_commands
from evalkit.errors import ExitCode, InputError
from evalkit.output import exit_code, print_json, show_outcome, show_rules
from evalkit.registry_cli import mlflow_target, registry_commands, tell_mlflow
from evalkit.replay.access import Access, sandbox_options
from evalkit.seal_cli import seal_commands

if TYPE_CHECKING:
    from evalkit.backends.choice import BackendName

_PATH = click.Path(path_type=Path)
_FORMATS = ("html", "markdown", "junit")
_BACKEND = click.option(
    "--backend",
    type=click.Choice(["mindir", "onnx"]),
    default="mindir",
    show_default=True,
    help="Which of the bundle's score graphs is run.",
)

_NO_CACHE = click.option(
    "--no-cache", is_flag=True, help="Neither read nor write the result cache: ask the model for every batch."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evalkit")
def cli() -> None:
    """Decide with evidence whether a newly trained language model may be released.

    Exit codes: 0 pass or done, 1 FAIL or a difference found, 2 input error, 3 INCONCLUSIVE, 4 incomplete, 70 our fault.
    """


@cli.command("run")
@click.argument("scenario", type=_PATH)
@click.option("--model", type=_PATH, help="Bundle to measure, instead of the scenario's.")
@click.option("--baseline", metavar="BUNDLE|alias:NAME", help="Compare with it, instead of the scenario's.")
@click.option("--out", type=_PATH, help="Run folder to create  [default: runs/NAME-TIME].")
@sandbox_options
@click.option("--tokens", is_flag=True, help="Keep per-token statistics (tokens.parquet).")
@_BACKEND
@_NO_CACHE
@click.option("--mlflow", metavar="URI", help="Log metrics and reports to this MLflow too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_command(
    scenario: Path,
    model: Path | None,
    baseline: str | None,
    out: Path | None,
    sandbox: str | None,
    sandbox_access: Access,
    tokens: bool,
    backend: "BackendName",
    no_cache: bool,
    mlflow: str | None,
    as_json: bool,
) -> int:
    """Measure candidate and baseline, compare, judge, report."""
    from evalkit.runs.orchestrate import RunRequest, run_scenario
    from evalkit.runs.recording import record_run
    from evalkit.scenario.loader import load_scenario

    # Looked for before the long part.
    target = None if mlflow is None else mlflow_target(mlflow)
    alias = None if baseline is None or not baseline.startswith("alias:") else baseline.removeprefix("alias:")
    request = RunRequest(
        scenario=load_scenario(scenario),
        candidate=model,
        baseline=None if baseline is None or alias is not None else Path(baseline),
        baseline_alias=alias,
        out=out,
        sandbox_address=sandbox,
        sandbox_access=sandbox_access,
        keep_tokens=tokens,
        backend=backend,
        use_cache=not no_cache,
    )
    with progress_bars() as progress:
        outcome = run_scenario(request, progress)
    record_run(outcome.folder)
    if target is not None:
        tell_mlflow(target, outcome.folder)
    return show_outcome(outcome, as_json)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@sandbox_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resume(run_folder: Path, sandbox: str | None, sandbox_access: Access, as_json: bool) -> int:
    """Finish an interrupted run; refused if model, data, flow or code changed."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.recording import record_run
    from evalkit.runs.resume import resume_run

    with progress_bars() as progress:
        outcome = resume_run(RunFolder(run_folder), progress, sandbox, sandbox_access)
    record_run(outcome.folder)
    return show_outcome(outcome, as_json)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def rescore(run_folder: Path, as_json: bool) -> int:
    """Compute a run's metrics again from its evidence, without the model; seal, judge and report again."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.recording import record_run
    from evalkit.runs.rescore import rescore as rescore_run

    outcome = rescore_run(RunFolder(run_folder))
    record_run(outcome.folder)
    return show_outcome(outcome, as_json)


@cli.command()
@click.option("--model", required=True, type=_PATH, help="Bundle to measure.")
@click.option("--data", required=True, type=_PATH, help="JSON lines: id, text, cluster?, tags?.")
@click.option("--out", type=_PATH, help="Keep the run in this folder.")
@click.option("--tokens", is_flag=True, help="Keep per-token statistics (needs --out).")
@click.option(
    "--logits", is_flag=True, help="Keep raw logits (needs --out, and a bundle exported with --logits)."
)
@click.option(
    "--window",
    metavar="L/S/PREFIX",
    help="Length, stride and first|every|none  [default: the model's max_length].",
)
@_BACKEND
@_NO_CACHE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(
    model: Path,
    data: Path,
    out: Path | None,
    tokens: bool,
    logits: bool,
    window: str | None,
    backend: "BackendName",
    no_cache: bool,
    as_json: bool,
) -> None:
    """Score texts alone: perplexity by token class, bits per byte, logits statistics.

    The text is scored as it stands, special tokens written in it included.
    """
    from evalkit.runs.orchestrate import score_file
    from evalkit.scoring.windows import parse_window

    if tokens and out is None:
        raise InputError("--tokens: per-token statistics need a place; add --out RUN")
    if logits and out is None:
        raise InputError("--logits: raw logits need a place; add --out RUN")
    asked = None if window is None else parse_window(window)
    with progress_bars() as progress:
        results = score_file(
            model, data, out, asked, tokens, progress, backend, keep_logits=logits, use_cache=not no_cache
        )
    if out is not None:
        from evalkit.runs.folder import RunFolder
        from evalkit.runs.recording import record_run

        record_run(RunFolder(out))
    if as_json:
        print_json(results.to_dict())
    else:
        from evalkit.report.terminal import print_metrics

        print_metrics(results)
        if out is not None:
            click.echo(f"run: {out}")


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--baseline", metavar="RUN", type=_PATH, help="Compare with the candidate of another run.")
@click.option("--policy", type=_PATH, help="Judge under this policy: its file, or a scenario that holds it.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def judge(run_folder: Path, baseline: Path | None, policy: Path | None, as_json: bool) -> int:
    """Judge a run again, under its own or another policy; nothing is measured."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.judging import checked_policy, judge_run, store_verdict
    from evalkit.runs.looks import look_under
    from evalkit.runs.recording import record_run
    from evalkit.runs.verify import check_sealed

    folder = RunFolder(run_folder)
    checked = checked_policy(folder, policy)
    check_sealed(folder)
    if baseline is not None:
        check_sealed(RunFolder(baseline))
    verdict = judge_run(folder, checked, baseline, look_under(folder, checked))
    if baseline is None:
        # Against another run's evidence the verdict isn't a fact of this folder, so it is printed, not kept.
        store_verdict(folder, verdict)
        record_run(folder)
        if folder.reports.is_dir():
            say(
                f"the reports show the verdict before this one; `evalkit report {run_folder}` writes them again"
            )
    if as_json:
        print_json(verdict.to_dict())
    else:
        show_rules(verdict)
        click.echo(f"verdict: {verdict.verdict}")
    return exit_code(verdict)


@cli.command()
@click.argument("first", metavar="RUN_A", type=_PATH)
@click.argument("second", metavar="RUN_B", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare the candidates of two runs sample by sample: A - B with intervals and p-values."""
    from evalkit.runs.comparing import compare_runs
    from evalkit.runs.folder import RunFolder

    found = compare_runs(RunFolder(first), RunFolder(second))
    if as_json:
        print_json(found.to_dict())
        return
    from evalkit.report.terminal import print_differences

    if not found.same_model:
        print_differences(found)
    else:
        click.echo(f"both runs measured the same model: {found.comparison.model_digest}")


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option(
    "--format", "formats", default=",".join(_FORMATS), show_default=True, help="Comma-separated list."
)
@click.option(
    "--lang",
    type=click.Choice(["en", "zh"]),
    default="en",
    show_default=True,
    help="English or Chinese; names and numbers stay.",
)
def report(run_folder: Path, formats: str, lang: str) -> None:
    """Write the reports of a run again."""
    from evalkit.report import write_reports
    from evalkit.runs.folder import RunFolder

    wanted = tuple(item.strip() for item in formats.split(",") if item.strip())
    unknown = sorted(set(wanted) - set(_FORMATS))
    if unknown or not wanted:
        raise InputError(f"--format {formats}: choose from {', '.join(_FORMATS)}")
    for path in write_reports(RunFolder(run_folder), wanted, lang).values():
        click.echo(f"report: {path}")


@cli.command("cache")
@click.option("--clear", is_flag=True, help="Remove it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache_command(clear: bool, as_json: bool) -> None:
    """Show what the result cache holds, or clear it.

    It lies under $EVALKIT_HOME (default ./.evalkit).
    """
    from evalkit.cache.overview import overview
    from evalkit.cache.store import cache_file, clear_cache

    if clear:
        clear_cache(cache_file())
    found = overview()
    if as_json:
        print_json(found.to_dict())
        return
    for line in found.lines():
        click.echo(line)


@cli.command()
@click.argument("scenario", type=_PATH)
@click.option("--pilot", metavar="RUN", type=_PATH, help="Take values and spreads from this run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def power(scenario: Path, pilot: Path | None, as_json: bool) -> None:
    """Before running: the sample size that decides each rule with 95 % power, and the power at hand."""
    from evalkit.metrics.references import trusted_modules
    from evalkit.runs.power import scenario_power
    from evalkit.scenario.loader import load_scenario

    loaded = load_scenario(scenario)
    with trusted_modules(loaded.additions.modules):
        found = scenario_power(loaded, pilot)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if as_json:
        print_json({"rules": [item.to_dict() for item in found.rules], "warnings": found.warnings})
        return
    from evalkit.report.terminal import print_power

    print_power(found.rules)


@cli.command()
@click.argument("file", type=_PATH)
@click.option("--self-test", is_flag=True, help="Play each dialogue with a gold, a null and an echo agent.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def validate(file: Path, self_test: bool, as_json: bool) -> int:
    """Check a scenario, dialogue, policy or flow file."""
    from evalkit.scenario.validate import validate as validate_file

    found = validate_file(file, run_self_test=self_test)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if as_json:
        print_json(
            {
                "kind": found.kind,
                "digest": found.digest,
                "dialogues": found.dialogues,
                "problems": found.problems,
                "warnings": found.warnings,
            }
        )
    else:
        for problem in found.problems:
            click.echo(f"problem: {problem}")
        talk = f", {found.dialogues} dialogues" if found.dialogues else ""
        click.echo(f"{found.kind}: {'self-test failed' if found.problems else 'ok'}{talk}")
    return int(ExitCode.INPUT if found.problems else ExitCode.OK)


def main() -> None:
    """Entry point of the console script."""
    run(cli)


for _command in (*data_commands, *registry_commands, *seal_commands):
    cli.add_command(_command)
