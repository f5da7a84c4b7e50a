"""Recording a finished run in the registry. The run folder is the evidence; a registry that fails changes nothing of it."""

from evalkit.console import say
from evalkit.gate.verdict import Verdict, read_verdict
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import read_plan
from evalkit.runs.registry import Registry, RunEntry, VerdictEntry
from evalkit.runs.registry_schema import RegistryUnusableError
from evalkit.runs.results_io import read_results
from evalkit.runs.seal import seal_digest


def record_run(folder: RunFolder) -> None:
    """Record a sealed run and its latest verdict; where the registry can't be written, one line on stderr says so.

    The verdict is in the run folder already, and neither it nor the exit code depends on the registry.

    Raises:
        InputError: the run isn't finished.
    """
    verdict = read_verdict(folder.verdict) if folder.verdict.is_file() else None
    try:
        with Registry(create=True) as registry:
            registry.record(run_entry(folder), read_results(folder.results), _verdict_entry(verdict))
    except RegistryUnusableError as error:
        say(
            f"warning: {error}; the run and its verdict are whole in {folder.path}, but `evalkit history` won't show "
            f"them until `evalkit rescore {folder.path}` records them"
        )


def run_entry(folder: RunFolder) -> RunEntry:
    """What the registry keeps of a run.

    Raises:
        InputError: the run isn't finished, or damaged.
    """
    plan = read_plan(folder)
    candidate, baseline = plan["candidate"], plan["baseline"]
    return RunEntry(
        run_id=plan["run_id"],
        created=plan["created"],
        folder=str(folder.path.resolve()),
        seal_sha256=seal_digest(folder.path),
        scenario=plan["scenario"]["name"],
        scenario_sha256=plan["scenario_sha256"],
        model_name=candidate["name"],
        model_digest=candidate["model_digest"],
        baseline_model_digest=None if baseline is None else baseline["model_digest"],
        first_release=plan["first_release"],
    )


def _verdict_entry(verdict: Verdict | None) -> VerdictEntry | None:
    return None if verdict is None else VerdictEntry(verdict.policy_sha256, verdict.verdict)
