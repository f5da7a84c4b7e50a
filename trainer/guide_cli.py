"""`trainer plan`: the seven steps of a new training, with a checklist."""

import json
from pathlib import Path

import click

from evalkit.errors import ExitCode, IncompleteError, InputError
from evalkit.runs.interruption import terminable
from trainer.cli_paths import PATH


@click.command()
@click.argument("plan", type=PATH)
@click.option("--out", type=PATH, required=True, help="Folder of the checklist and its evidence.")
@click.option("--check", is_flag=True, help="Only show what is done, open and stale.")
@click.option("--step", metavar="STEP", help="Run this step only, also if it is done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def plan(plan: Path, out: Path, check: bool, step: str | None, as_json: bool) -> int:
    """Go through the seven steps that PLAN.yaml describes: run what is open or stale, in order.

    Stops at the first step that isn't done. Exit code 0: all done or skipped; 1: one failed; 3: some are left.
    """
    from trainer.guide.checklist import QUESTIONS, STEPS, Checklist
    from trainer.run_log import claimed

    if step is not None and (step not in STEPS or check):
        raise InputError(f"--step {step}: one of {', '.join(STEPS)} is needed, without --check")
    if check:
        checklist = Checklist(plan, out)
    else:
        with claimed(out), terminable():
            checklist = Checklist(plan, out)
            for name in STEPS if step is None else (step,):
                state, why = checklist.state(name)
                if step is None and state in ("done", "skipped"):
                    continue
                if state == "open" and why.startswith("not in"):
                    break
                if not as_json:
                    click.echo(f"{name}: {QUESTIONS[name]}")
                try:
                    checklist.run(name)
                except KeyboardInterrupt:
                    raise IncompleteError(f"{name}: interrupted; the same command runs it again") from None
                if checklist.state(name)[0] != "done":
                    break
    found = checklist.to_json()
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        for number, (name, row) in enumerate(found["steps"].items(), start=1):
            click.echo(f"{number}  {row['state']:<12}  {name}: {row['why']}")
    states = {row["state"] for row in found["steps"].values()}
    if states <= {"done", "skipped"}:
        return int(ExitCode.OK)
    return int(ExitCode.FAIL if states & {"failed", "stopped"} else ExitCode.INCONCLUSIVE)
