"""Promotion: an alias is bound to a policy and a scenario, and moves only to a model that passed under both."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.backends.base import DECLARED
from evalkit.bundle import Bundle, load_bundle
from evalkit.errors import EvalkitError, ExitCode, InputError
from evalkit.gate.policy import policy_digest, undecided
from evalkit.gate.verdict import read_verdict
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import read_plan
from evalkit.runs.registry import Registry
from evalkit.runs.registry_rows import Alias, AuditEntry
from evalkit.runs.seal import seal_digest
from evalkit.runs.verify import verify
from evalkit.scenario.loader import check_gate, load_scenario, policy_of_file

EMPTY = "none"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(rf"[0-9a-f]{{64}}|{DECLARED}.+|{EMPTY}")


class PromotionRefusedError(EvalkitError):
    """The promotion was refused, or lost against another one; the alias is as it was."""

    exit_code = ExitCode.FAIL


@dataclass(frozen=True)
class Promotion:
    """An alias that moved.

    Attributes:
        entry: of the audit.
        notes: what whoever promotes should know, one line each.
    """

    entry: AuditEntry
    notes: tuple[str, ...]


def bind_alias(name: str, policy_file: Path, scenario_file: Path) -> AuditEntry:
    """Bind an alias to a policy and a scenario; from now on it moves only on a PASS under both.

    Args:
        name: of the alias.
        policy_file: a policy, or a scenario whose gate is one.
        scenario_file: the scenario. Its model, baseline, gate and output don't count.

    Raises:
        InputError: a file isn't sound, or the registry can't be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r}: isn't a name for an alias; letters, digits, '.', '_' and '-' make one")
    if name.casefold() == EMPTY:
        raise InputError(
            f"{name!r}: isn't a name for an alias: it says elsewhere that there is none; choose another"
        )
    scenario = load_scenario(scenario_file)
    policy, source = policy_of_file(policy_file)
    check_gate(scenario, policy, source)
    idle = undecided(policy, first_release=scenario.scenario.first_release)
    if idle is not None:
        raise InputError(f"{policy_file}: {idle[0]}, so nothing could be promoted by it; {idle[1]}")
    with Registry(create=True) as registry:
        return registry.bind(name, policy_digest(policy), scenario.digest)


def promote(
    folder: RunFolder, name: str, *, expect: str | None = None, force: str | None = None
) -> Promotion:
    """Let an alias hold the model that a run measured.

    Args:
        folder: a run that verifies.
        name: of the alias.
        expect: the digest of the model that the alias must hold now, `none` if it must be empty; by default what it
            holds when the work begins.
        force: why the alias should move although the run has no PASS under what the alias demands; it is kept in the
            audit and shown in every later report. A run that doesn't verify isn't promoted by it either.

    Raises:
        InputError: no such alias or run, a malformed digest, a reason without words.
        PromotionRefusedError: the run doesn't verify or has no PASS under the alias's digests; or the alias doesn't
            hold what was expected, now or after the run was checked.
    """
    if force is not None and not force.strip():
        raise InputError("--force: a reason is needed; it stands in the audit and in every later report")
    if expect is not None and not _DIGEST.fullmatch(expect):
        raise InputError(f"--expect {expect}: a model digest of 64 hex digits is needed, or {EMPTY}")
    plan = read_plan(folder)
    with Registry() as registry:
        alias = _bound(registry, name)
    if expect is not None and expect != (alias.model_digest or EMPTY):
        raise PromotionRefusedError(
            f"{name} holds {alias.model_digest or EMPTY}, not {expect}: nothing was promoted"
        )
    differences = verify(folder)
    if differences:
        raise PromotionRefusedError(
            f"{folder.path}: doesn't verify, so nothing was promoted: {differences[0]}; see `evalkit verify`"
        )
    verdict, problem, advice = _judged(folder, plan, alias)
    if problem is not None and force is None:
        raise PromotionRefusedError(f"{folder.path}: {problem}: nothing was promoted; {advice}")
    model, baseline = plan["candidate"]["model_digest"], plan["baseline"]
    bundle, notes = _place(plan, model)
    if (alias.model_digest, alias.bundle) == (model, bundle):
        raise PromotionRefusedError(f"{name} holds {model} already: nothing was promoted")
    compared = None if baseline is None else baseline["model_digest"]
    if alias.model_digest not in (None, compared, model):
        notes.append(
            f"the run compared with {compared or 'no baseline'}, not with {alias.model_digest}, which {name} held"
        )
    # Opened anew to be written, after the long part: a promotion locks nobody out while it verifies.
    with Registry(create=True) as registry:
        entry = registry.move(
            alias,
            run_id=plan["run_id"],
            run_folder=str(folder.path.resolve()),
            seal_sha256=seal_digest(folder.path),
            model_digest=model,
            baseline_model_digest=compared,
            bundle=bundle,
            verdict=verdict,
            reason=None if force is None else " ".join(force.split()),
            overridden=problem,
        )
        if entry is None:
            now = registry.alias(name)
    if entry is None:
        raise PromotionRefusedError(
            f"{name} changed meanwhile: it holds {(now and now.model_digest) or EMPTY}, not "
            f"{alias.model_digest or EMPTY}, or demands something else; nothing was promoted"
        )
    return Promotion(entry, tuple(notes))


def promoted_bundle(name: str) -> Bundle:
    """The bundle of the model that an alias holds, with its digest checked.

    Raises:
        InputError: no such alias, an empty one, or the bundle isn't where it was or is another.
    """
    with Registry() as registry:
        alias = _bound(registry, name)
    if alias.model_digest is None:
        raise InputError(
            f"alias:{name}: holds no model yet; promote one, or write `first_release: true` for the first release"
        )
    advice = f"put it back, or name a bundle with model digest {alias.model_digest}"
    if alias.bundle is None:
        raise InputError(f"alias:{name}: the model {alias.model_digest} isn't known as a bundle; {advice}")
    try:
        bundle = load_bundle(Path(alias.bundle))
    except InputError as error:
        raise InputError(
            f"alias:{name}: the promoted bundle isn't whole in its place: {error}; {advice}"
        ) from None
    if bundle.model_digest != alias.model_digest:
        raise InputError(
            f"alias:{name}: {alias.bundle} now holds the model {bundle.model_digest}, not the promoted one; {advice}"
        )
    return bundle


def promotions_shown(digests: set[str]) -> list[AuditEntry]:
    """What reports show of the audit: every forced promotion, and those of the models with these digests.

    Raises:
        RegistryUnusableError: the registry can't be read.
    """
    with Registry() as registry:
        entries = registry.audit()
    return [item for item in entries if item.action == "force" or item.model_digest in digests]


def aliases_and_audit(name: str | None) -> tuple[list[Alias], list[AuditEntry]]:
    """All aliases, or one, and the audit's entries about them, the oldest first.

    Raises:
        InputError: no such alias, or the registry can't be read.
    """
    with Registry() as registry:
        audit = registry.audit()
        if name is None:
            return registry.aliases(), audit
        return [_bound(registry, name)], [entry for entry in audit if entry.alias == name]


def _bound(registry: Registry, name: str) -> Alias:
    alias = registry.alias(name)
    if alias is None:
        raise InputError(
            f"alias:{name}: isn't bound in {registry.path}; bind it with `evalkit alias set {name} --policy FILE "
            "--scenario FILE`"
        )
    return alias


def _judged(
    folder: RunFolder, plan: dict[str, Any], alias: Alias
) -> tuple[str | None, str | None, str | None]:
    """The verdict under the alias's policy, what speaks against a promotion, and what to do about it.

    The run verifies, so what its files say is true.
    """
    scenario = str(plan.get("scenario_sha256"))
    if scenario != alias.scenario_sha256:
        problem = (
            f"was measured under scenario {scenario[:12]}, {alias.name} demands {alias.scenario_sha256[:12]}"
        )
        return None, problem, "run the scenario that the alias is bound to"
    path = folder.verdicts / f"{alias.policy_sha256}.json"
    if not path.is_file():
        problem = f"has no verdict under policy {alias.policy_sha256[:12]}, which {alias.name} demands"
        return None, problem, f"judge it with `evalkit judge {folder.path} --policy FILE`"
    verdict = read_verdict(path).verdict
    if verdict != "PASS":
        problem = f"has the verdict {verdict} under the policy that {alias.name} demands"
        return verdict, problem, "see its report"
    return verdict, None, None


def _place(plan: dict[str, Any], model_digest: str) -> tuple[str | None, list[str]]:
    """Folder of the run's candidate, and what to know about it."""
    place = plan.get("inputs", {}).get("candidate")
    if place is None:
        return None, []
    if not Path(place).exists():
        return place, [
            f"{place}: isn't there, so the alias can't serve as a baseline here until the bundle is put back"
        ]
    found = load_bundle(Path(place)).model_digest
    if found != model_digest:
        raise PromotionRefusedError(
            f"{place}: now holds the model {found}, but the run measured {model_digest}; nothing was promoted"
        )
    return place, []
