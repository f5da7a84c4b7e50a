"""Check a finished run: nothing missing, extra or edited, and every number and verdict computed again."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evalkit.canonical import sha256_file
from evalkit.errors import EvalkitError, InputError
from evalkit.gate.judge import judge
from evalkit.gate.policy import policy_digest
from evalkit.gate.verdict import embedded_policy, read_verdict
from evalkit.metrics.references import MissingModuleError
from evalkit.runs.derive import DERIVED_FILES, derive, run_policy
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import read_json
from evalkit.runs.judging import judge_run, plan_facts
from evalkit.runs.plan import read_plan
from evalkit.runs.seal import read_seal

_EVIDENCE = r"evidence/(candidate|baseline)"
_FOLDERS = re.compile(rf"evidence|{_EVIDENCE}|verdicts|reports")
RUN_FILES = re.compile(
    rf"(plan|results|results\.baseline|comparison|seal|verdict)\.json|{_EVIDENCE}/(samples|turns|tokens|logits)\.parquet"
    r"|verdicts/[0-9a-f]{64}\.json"
)
_UNSEALED = re.compile(r"seal\.json|verdict\.json|verdicts/.*")


@dataclass(frozen=True)
class FileDifference:
    """One thing that isn't as it was sealed, measured or judged: the path in the run, and what is wrong."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def verify(folder: RunFolder) -> list[FileDifference]:
    """Everything in which a run differs from what was sealed, measured and judged; empty if all is well.

    Args:
        folder: a finished run. reports/ are projections and aren't looked at.

    Raises:
        InputError: no such folder, or one that holds nothing of a run.
    """
    if not folder.path.is_dir():
        raise InputError(f"{folder.path}: no such run folder; check the path")
    if not any(os.path.lexists(path) for path in (folder.plan, folder.seal, folder.path / "evidence")):
        raise InputError(f"{folder.path}: isn't a run (no plan.json, seal.json or evidence); check the path")
    found, differences = _walk(folder.path)
    differences += _check_seal(folder, found)
    differences += _check_json(folder, found)
    broken = {difference.path for difference in differences}
    # From a plan or evidence that was edited nothing can be recomputed; it is named already.
    if not any(path == "plan.json" or path.startswith("evidence") for path in broken):
        differences += _check_numbers(folder, found)
    return _one_a_file(differences)


def check_sealed(folder: RunFolder) -> None:
    """Refuse a run that isn't finished, or not as it was sealed: nothing may be decided by it.

    Raises:
        InputError: so it is, or it's no run at all.
    """
    read_plan(folder)
    if not folder.seal.is_file():
        raise InputError(
            f"{folder.path}: isn't finished: the run is incomplete; finish it with `evalkit resume {folder.path}`"
        )
    broken = seal_differences(folder)
    if broken:
        raise InputError(
            f"{folder.path}: isn't as it was sealed: {broken[0]}; put back what was sealed, see `evalkit verify`"
        )


def seal_differences(folder: RunFolder) -> list[FileDifference]:
    """Everything in which a run differs from what was sealed; nothing is computed."""
    found, differences = _walk(folder.path)
    return _one_a_file(differences + _check_seal(folder, found))


def _walk(run: Path) -> tuple[set[str], list[FileDifference]]:
    """Regular files outside reports/, and whatever has no place in a run."""
    found: set[str] = set()
    differences = []
    for name, path in _entries(run):
        if path.is_symlink():
            differences.append(FileDifference(name, "a link; a run holds only regular files"))
        elif path.is_dir():
            if not _FOLDERS.fullmatch(name):
                differences.append(FileDifference(name, "a folder that doesn't belong to a run"))
        elif not path.is_file():
            differences.append(FileDifference(name, "not a regular file"))
        elif RUN_FILES.fullmatch(name):
            found.add(name)
        else:
            differences.append(FileDifference(name, "doesn't belong to a run"))
    return found, differences


def _entries(run: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, files in os.walk(run):
        folder = Path(parent)
        names = sorted([*folders, *files])
        folders[:] = [name for name in folders if not (folder == run and name == "reports")]
        for name in names:
            path = folder / name
            yield path.relative_to(run).as_posix(), path


def _check_seal(folder: RunFolder, found: set[str]) -> list[FileDifference]:
    if "seal.json" not in found:
        return [FileDifference("seal.json", "missing: the run isn't sealed")]
    try:
        sealed = read_seal(folder.path)
    except InputError as error:
        return [FileDifference("seal.json", _message(error, folder.seal))]
    differences = []
    for name, entry in sealed.items():
        if name not in found:
            differences.append(FileDifference(name, "missing, though it was sealed"))
            continue
        try:
            size, digest = (folder.path / name).stat().st_size, sha256_file(folder.path / name)
        except OSError as error:
            differences.append(FileDifference(name, f"can't be read ({error.strerror})"))
            continue
        if size != entry["bytes"]:
            differences.append(FileDifference(name, f"{size} bytes, {entry['bytes']} were sealed"))
        elif digest != entry["sha256"]:
            differences.append(FileDifference(name, "edited: its SHA-256 isn't the sealed one"))
    extra = sorted(name for name in found if name not in sealed and not _UNSEALED.fullmatch(name))
    return differences + [FileDifference(name, "extra: it wasn't sealed") for name in extra]


def _check_json(folder: RunFolder, found: set[str]) -> list[FileDifference]:
    differences = []
    for name in sorted(found):
        if name.endswith(".json"):
            try:
                read_json(folder.path / name)
            except InputError as error:
                differences.append(FileDifference(name, _message(error, folder.path / name)))
    return differences


def _check_numbers(folder: RunFolder, found: set[str]) -> list[FileDifference]:
    try:
        plan = read_plan(folder)
        policy = run_policy(plan)
        derived = derive(folder)
    except MissingModuleError:
        raise  # not a difference: what that code made can't be checked
    except EvalkitError as error:
        return [FileDifference(_blamed(error, folder), _message(error, folder.path))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Plan and evidence that were rewritten and sealed again can hold anything.
        return [FileDifference("evidence", f"results can't be computed from it and plan.json ({error!r})")]
    differences = []
    computed = derived.files()
    for name in DERIVED_FILES:
        differences += _compare(folder, name, found, computed.get(name), "what the evidence gives")
    judged: dict[str, bytes] = {}
    if policy is not None:
        own = judge(derived.results, derived.comparison, policy, **plan_facts(plan))
        judged[policy_digest(policy)] = own.to_bytes()
    return differences + _check_verdicts(folder, found, judged)


def _check_verdicts(folder: RunFolder, found: set[str], judged: dict[str, bytes]) -> list[FileDifference]:
    """Check verdict.json and verdicts/.

    Args:
        folder, found: the run and its files.
        judged: verdicts computed already, by policy digest: that of the run's own policy, if it has one.
    """
    stored = sorted(name for name in found if name.startswith("verdicts/"))
    expected_names = {f"verdicts/{digest}.json" for digest in judged}
    if judged or stored:
        expected_names.add("verdict.json")
    differences = [
        FileDifference(name, "missing, though the run was judged") for name in sorted(expected_names - found)
    ]
    latest = ["verdict.json"] if "verdict.json" in found else []
    for name in stored + latest:
        differences += _check_verdict(folder, name, found, judged)
    return differences


def _check_verdict(
    folder: RunFolder, name: str, found: set[str], judged: dict[str, bytes]
) -> list[FileDifference]:
    path = folder.path / name
    try:
        verdict = read_verdict(path)
        policy = embedded_policy(verdict, str(path))
        digest = policy_digest(policy)
        expected = judged.get(digest) or judge_run(folder, policy, look=verdict.look).to_bytes()
    except EvalkitError as error:
        return [FileDifference(name, _message(error, path))]
    judged[digest] = expected
    own_name = f"verdicts/{digest}.json"
    if name.startswith("verdicts/") and name != own_name:
        return [FileDifference(name, f"holds the verdict of another policy; its name would be {own_name}")]
    differences = _compare(folder, name, found, expected, "what judging again gives")
    if name == "verdict.json" and own_name not in found:
        differences.append(FileDifference(own_name, "missing, though verdict.json was judged by this policy"))
    return differences


def _compare(
    folder: RunFolder, name: str, found: set[str], expected: bytes | None, source: str
) -> list[FileDifference]:
    if expected is None:
        return [FileDifference(name, f"extra: it isn't {source}")] if name in found else []
    if name not in found:
        return [FileDifference(name, "missing")]
    if (folder.path / name).read_bytes() != expected:
        return [FileDifference(name, f"differs from {source}")]
    return []


def _one_a_file(differences: list[FileDifference]) -> list[FileDifference]:
    """The first difference of each file, sorted by path."""
    first: dict[str, FileDifference] = {}
    for difference in differences:
        first.setdefault(difference.path, difference)
    return [first[path] for path in sorted(first)]


def _message(error: EvalkitError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path}:")


def _blamed(error: EvalkitError, folder: RunFolder) -> str:
    """The file of the run that an error names, else the folder of the evidence."""
    for path in (folder.plan, *(folder.path / "evidence").rglob("*.parquet")):
        if str(error).startswith(str(path)):
            return path.relative_to(folder.path).as_posix()
    return "evidence"
