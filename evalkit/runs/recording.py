"""Recording a finished run in the registry. The run folder is the evidence; a registry that fails changes nothing of it."""

from evalkit.console import say
from evalkit.errors import InputError
from evalkit.gate.verdict import Verdict, read_verdict
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import Reader
from evalkit.runs.plan import read_plan
from evalkit.runs.registry import Registry
from evalkit.runs.registry_rows import RunEntry, VerdictEntry
from evalkit.runs.results_io import read_results
from evalkit.runs.seal import seal_digest


def record_run(folder: RunFolder) -> None:
    """Record a sealed run and its latest verdict; where that can't be done, one line on stderr says so.

    The verdict is in the run folder already, and neither it nor the exit code depends on the registry.
    """
    try:
        run, results = run_entry(folder), read_results(folder.results)
        verdict = read_verdict(folder.verdict) if folder.verdict.is_file() else None
        with Registry(create=True) as registry:
            registry.record(run, results, _verdict_entry(verdict))
    except InputError as error:
        say(
            f"warning: {error}; the run isn't recorded, so `evalkit history` doesn't show it; its verdict stands in "
            f"{folder.path}, and `evalkit rescore {folder.path}` records it"
        )


def run_entry(folder: RunFolder) -> RunEntry:
    """What the registry keeps of a run.

    Raises:
        InputError: the run isn't finished, or damaged.
    """
    where = str(folder.plan)
    plan = Reader(read_plan(folder), where)
    candidate = Reader(plan.field("candidate"), f"{where}: candidate")
    baseline = plan.field("baseline")
    return RunEntry(
        run_id=plan.text("run_id"),
        created=plan.text("created"),
        folder=str(folder.path.resolve()),
        seal_sha256=seal_digest(folder.path),
        scenario=Reader(plan.field("scenario"), f"{where}: scenario").text("name"),
        scenario_sha256=plan.text("scenario_sha256"),
        model_name=candidate.text("name"),
        model_digest=candidate.text("model_digest"),
        baseline_model_digest=None
        if baseline is None
        else Reader(baseline, f"{where}: baseline").text("model_digest"),
        first_release=plan.flag("first_release"),
    )


def _verdict_entry(verdict: Verdict | None) -> VerdictEntry | None:
    return None if verdict is None else VerdictEntry(verdict.policy_sha256, verdict.verdict)
