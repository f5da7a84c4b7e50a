"""The `evalkit` command line: each command is a thin shell over a function."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalkit.console import progress_bars, run
from evalkit.errors import ExitCode, InputError

if TYPE_CHECKING:
    from evalkit.gate.verdict import Verdict
    from evalkit.scenario.schema import Window

_PATH = click.Path(path_type=Path)
_EXIT_BY_VERDICT = {"PASS": ExitCode.OK, "FAIL": ExitCode.FAIL, "INCONCLUSIVE": ExitCode.INCONCLUSIVE}
_FORMATS = ("html", "markdown", "junit")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evalkit")
def cli() -> None:
    """Decide with evidence whether a newly trained language model may be released.

    Exit codes: 0 pass or done, 1 FAIL or a difference found, 2 input error, 3 INCONCLUSIVE, 4 incomplete, 70 our fault.
    """


@cli.command("run")
@click.argument("scenario", type=_PATH)
@click.option("--model", type=_PATH, help="Bundle to measure, instead of the scenario's.")
@click.option("--baseline", help="Bundle to compare with, instead of the scenario's.")
@click.option("--out", type=_PATH, help="Run folder to create  [default: runs/NAME-TIME].")
@click.option(
    "--sandbox", metavar="ADDR", help="Replay the candidate's dialogues against this running sandbox."
)
@click.option("--tokens", is_flag=True, help="Keep per-token statistics (tokens.parquet).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_command(
    scenario: Path,
    model: Path | None,
    baseline: str | None,
    out: Path | None,
    sandbox: str | None,
    tokens: bool,
    as_json: bool,
) -> int:
    """Measure candidate and baseline, compare, judge, report."""
    from evalkit.runs.orchestrate import RunRequest, run_scenario
    from evalkit.scenario.loader import load_scenario

    if baseline is not None and baseline.startswith("alias:"):
        raise InputError(
            f"--baseline {baseline}: aliases need a registry, which this version lacks; name a bundle folder"
        )
    request = RunRequest(
        scenario=load_scenario(scenario),
        candidate=model,
        baseline=None if baseline is None else Path(baseline),
        out=out,
        sandbox_address=sandbox,
        keep_tokens=tokens,
    )
    with progress_bars() as progress:
        outcome = run_scenario(request, progress)
    report = outcome.reports.get("html") or next(iter(outcome.reports.values()), None)
    if as_json:
        _print_json(
            {
                "verdict": outcome.verdict_text,
                "run": str(outcome.folder.path),
                "report": None if report is None else str(report),
                "rules": [] if outcome.verdict is None else outcome.verdict.to_dict()["rules"],
            }
        )
    else:
        if outcome.verdict is not None:
            _show_rules(outcome.verdict)
        click.echo(f"verdict: {outcome.verdict_text}")
        click.echo(f"report: {report or 'none'}")
    return _exit_code(outcome.verdict)


@cli.command()
@click.option("--model", required=True, type=_PATH, help="Bundle to measure.")
@click.option("--data", required=True, type=_PATH, help="JSON lines: id, text, cluster?, tags?.")
@click.option("--out", type=_PATH, help="Keep the run in this folder.")
@click.option("--tokens", is_flag=True, help="Keep per-token statistics (needs --out).")
@click.option(
    "--window",
    metavar="L/S/PREFIX",
    help="Length, stride and first|every|none  [default: the model's max_length].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score(model: Path, data: Path, out: Path | None, tokens: bool, window: str | None, as_json: bool) -> None:
    """Score texts alone: perplexity by token class, bits per byte, logits statistics.

    The text is scored as it stands, special tokens written in it included.
    """
    from evalkit.runs.orchestrate import score_file

    if tokens and out is None:
        raise InputError("--tokens: per-token statistics need a place; add --out RUN")
    with progress_bars() as progress:
        results = score_file(model, data, out, _parse_window(window), tokens, progress)
    if as_json:
        _print_json(results.to_dict())
    else:
        from evalkit.report.terminal import print_metrics

        print_metrics(results)
        if out is not None:
            click.echo(f"run: {out}")


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--baseline", metavar="RUN", type=_PATH, help="Compare with the candidate of another run.")
@click.option("--policy", type=_PATH, help="Judge under this policy file.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def judge(run_folder: Path, baseline: Path | None, policy: Path | None, as_json: bool) -> int:
    """Judge a run again, under its own or another policy; nothing is measured."""
    from evalkit.gate.policy import load_policy
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.judging import judge_run, store_verdict

    folder = RunFolder(run_folder)
    verdict = judge_run(folder, None if policy is None else load_policy(policy), baseline)
    if baseline is None:
        # Against another run's evidence the verdict isn't a fact of this folder, so it is printed, not kept.
        store_verdict(folder, verdict)
    if as_json:
        _print_json(verdict.to_dict())
    else:
        _show_rules(verdict)
        click.echo(f"verdict: {verdict.verdict}")
    return _exit_code(verdict)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option(
    "--format", "formats", default=",".join(_FORMATS), show_default=True, help="Comma-separated list."
)
def report(run_folder: Path, formats: str) -> None:
    """Write the reports of a run again."""
    from evalkit.report import write_reports
    from evalkit.runs.folder import RunFolder

    wanted = tuple(item.strip() for item in formats.split(",") if item.strip())
    unknown = sorted(set(wanted) - set(_FORMATS))
    if unknown or not wanted:
        raise InputError(f"--format {formats}: choose from {', '.join(_FORMATS)}")
    for path in write_reports(RunFolder(run_folder), wanted).values():
        click.echo(f"report: {path}")


@cli.command()
@click.argument("run_folder", metavar="RUN", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(run_folder: Path, as_json: bool) -> int:
    """Check the seal, recompute results, comparison and verdict, say what differs."""
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.verify import verify as verify_run

    differences = verify_run(RunFolder(run_folder))
    if as_json:
        _print_json({"verified": not differences, "differences": [str(item) for item in differences]})
    else:
        for item in differences:
            click.echo(f"differs: {item}")
        click.echo("verified: no" if differences else "verified: yes")
    return int(ExitCode.FAIL if differences else ExitCode.OK)


@cli.command()
@click.argument("file", type=_PATH)
@click.option("--self-test", is_flag=True, help="Play each dialogue with a gold, a null and an echo agent.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def validate(file: Path, self_test: bool, as_json: bool) -> int:
    """Check a scenario, dialogue, policy or flow file."""
    from evalkit.scenario.validate import validate as validate_file

    found = validate_file(file, run_self_test=self_test)
    if as_json:
        _print_json(
            {
                "kind": found.kind,
                "digest": found.digest,
                "dialogues": found.dialogues,
                "problems": found.problems,
            }
        )
    else:
        for problem in found.problems:
            click.echo(f"problem: {problem}")
        talk = f", {found.dialogues} dialogues" if found.dialogues else ""
        click.echo(f"{found.kind}: {'self-test failed' if found.problems else 'ok'}{talk}")
    return int(ExitCode.INPUT if found.problems else ExitCode.OK)


def _parse_window(text: str | None) -> "Window | None":
    if text is None:
        return None
    from pydantic import ValidationError

    from evalkit.scenario.schema import Window

    parts = text.split("/")
    try:
        length, stride, prefix = int(parts[0]), int(parts[1]), parts[2]
        if len(parts) != 3:
            raise IndexError
        return Window.model_validate({"length": length, "stride": stride, "prefix": prefix})
    except (ValueError, IndexError) as error:
        detail = ""
        if isinstance(error, ValidationError):
            detail = f": {error.errors(include_url=False)[0]['msg'].removeprefix('Value error, ')}"
        raise InputError(
            f"--window {text}: LENGTH/STRIDE/PREFIX is needed, e.g. 512/512/first{detail}"
        ) from None


def _show_rules(verdict: "Verdict") -> None:
    from evalkit.report.terminal import print_rules

    print_rules(verdict)


def _exit_code(verdict: "Verdict | None") -> int:
    return int(ExitCode.OK if verdict is None else _EXIT_BY_VERDICT[verdict.verdict])


def _print_json(value: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def main() -> None:
    """Entry point of the console script."""
    run(cli)
