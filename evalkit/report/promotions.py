"""Promotions as a report tells them: every forced one as a notice, and those of the run's own models."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evalkit.report import numbers
from evalkit.runs.promotion import promotions_shown
from evalkit.runs.registry_rows import AuditEntry
from evalkit.runs.registry_schema import RegistryUnusableError


def read_promotions(plan: Mapping[str, Any]) -> tuple[tuple[AuditEntry, ...], str | None]:
    """The audit's entries that a run's reports show, and what is wrong with the registry, or None."""
    models = [plan.get(role) for role in ("candidate", "baseline")]
    digests = {str(model.get("model_digest")) for model in models if isinstance(model, Mapping)}
    try:
        return tuple(promotions_shown(digests)), None
    except RegistryUnusableError as error:
        return (), str(error)


def forced_notices(entries: Iterable[AuditEntry]) -> Iterator[str]:
    """A sentence a forced promotion, the latest first."""
    for entry in reversed([item for item in entries if item.action == "force"]):
        against = f", although the run {entry.overridden}" if entry.overridden else ""
        yield f"{_moved(entry)} by force{against}. Reason given: {entry.reason}."


def promotion_sentences(entries: Iterable[AuditEntry]) -> Iterator[str]:
    """A sentence a promotion that passed."""
    for entry in entries:
        if entry.action == "promote":
            policy, scenario = entry.policy_sha256[:12], entry.scenario_sha256[:12]
            yield f"{_moved(entry)} on a {entry.verdict} under policy {policy} in scenario {scenario}."


def _moved(entry: AuditEntry) -> str:
    before = numbers.short_digest(entry.previous_digest) if entry.previous_digest else "none"
    after = numbers.short_digest(entry.model_digest)
    return (
        f"{entry.alias} was moved from {before} to {after} on {entry.at} by {entry.who} (run {entry.run_id})"
    )
