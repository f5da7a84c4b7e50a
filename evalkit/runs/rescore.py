"""Compute the numbers of a finished run again from its evidence, without the model: new metrics, mended code."""

from evalkit.console import say
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic
from evalkit.gate.policy import policy_digest
from evalkit.gate.verdict import embedded_policy, read_verdict
from evalkit.report import write_reports
from evalkit.runs.derive import DERIVED_FILES, derive
from evalkit.runs.folder import RunFolder
from evalkit.runs.interruption import terminable
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.orchestrate import RunOutcome, report_formats
from evalkit.runs.plan import read_plan
from evalkit.runs.seal import read_seal_content, write_seal
from evalkit.runs.verify import FileDifference, seal_differences
from evalkit.scenario.schema import Policy


def rescore(folder: RunFolder) -> RunOutcome:
    """Write results, comparison, seal, verdicts and reports of a sealed run again.

    Plan and evidence stay as they were sealed. Every stored verdict is judged again under its own policy; the latest
    stays that of the same policy.

    Raises:
        InputError: not a finished run, or its seal is broken.
    """
    plan = read_plan(folder)
    if not folder.seal.is_file():
        raise InputError(
            f"{folder.path}: the run isn't finished; finish it with `evalkit resume {folder.path}`"
        )
    broken = seal_differences(folder)
    _refuse(folder, [item for item in broken if item.path not in DERIVED_FILES])
    derived = derive(folder)
    contents = derived.files()
    # A rescore that was killed between results and seal left exactly what this one computes; all else is an edit.
    _refuse(folder, [item for item in broken if _bytes(folder, item.path) != contents.get(item.path)])
    verdicts = _stored_verdicts(folder)
    if read_seal_content(folder.path).get("signature") is not None:
        say(
            f"the signature goes with the old seal; sign it again: `evalkit sign {folder.path} --key PRIVATE`"
        )
    with terminable():
        for name, content in contents.items():
            write_bytes_atomic(folder.path / name, content)
        write_seal(folder.path)
        verdict = None
        for policy, look in verdicts:
            verdict = judge_run(folder, policy, look=look)
            store_verdict(folder, verdict)
        return RunOutcome(folder, derived.results, verdict, write_reports(folder, report_formats(plan)))


def _stored_verdicts(folder: RunFolder) -> list[tuple[Policy, int]]:
    """Policy and look of each stored verdict, that of the latest verdict last."""
    if not folder.verdict.is_file():
        return []
    paths = [*sorted(folder.verdicts.glob("*.json")), folder.verdict]
    stored: dict[str, tuple[Policy, int]] = {}
    for path in paths:
        verdict = read_verdict(path)
        policy = embedded_policy(verdict, str(path))
        digest = policy_digest(policy)
        stored.pop(digest, None)
        stored[digest] = policy, verdict.look
    return list(stored.values())


def _bytes(folder: RunFolder, name: str) -> bytes | None:
    path = folder.path / name
    return path.read_bytes() if path.is_file() else None


def _refuse(folder: RunFolder, broken: list[FileDifference]) -> None:
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(
            f"{folder.path}: the seal is broken: {broken[0]}{more}; put back what was sealed, see `evalkit verify`"
        )
