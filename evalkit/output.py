"""What the commands print on stdout, and the exit code of a verdict."""

from typing import TYPE_CHECKING, Any

import click

from evalkit.errors import ExitCode

if TYPE_CHECKING:
    from evalkit.gate.verdict import Verdict
    from evalkit.runs.orchestrate import RunOutcome
    from evalkit.runs.results_io import Results

_EXIT_BY_VERDICT = {"PASS": ExitCode.OK, "FAIL": ExitCode.FAIL, "INCONCLUSIVE": ExitCode.INCONCLUSIVE}


def show_outcome(outcome: "RunOutcome", as_json: bool) -> int:
    """Print what a run came to; returns the exit code."""
    report = outcome.reports.get("html") or next(iter(outcome.reports.values()), None)
    if as_json:
        print_json(
            {
                "verdict": outcome.verdict_text,
                "run": str(outcome.folder.path),
                "report": None if report is None else str(report),
                "rules": [] if outcome.verdict is None else outcome.verdict.to_dict()["rules"],
            }
        )
    else:
        if outcome.verdict is not None:
            show_rules(outcome.verdict)
        show_conservation(outcome.results)
        click.echo(f"verdict: {outcome.verdict_text}")
        click.echo(f"report: {report or 'none'}")
    return exit_code(outcome.verdict)


def show_rules(verdict: "Verdict") -> None:
    """Print a line a rule."""
    from evalkit.report.terminal import print_rules

    print_rules(verdict)


def show_conservation(results: "Results") -> None:
    """Print what was scored."""
    from evalkit.report.terminal import print_conservation

    print_conservation(results)


def exit_code(verdict: "Verdict | None") -> int:
    """The exit code of a verdict; 0 where nothing was judged."""
    return int(ExitCode.OK if verdict is None else _EXIT_BY_VERDICT[verdict.verdict])


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
