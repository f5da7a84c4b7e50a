"""What the registry holds: runs, verdicts, metrics, aliases and the audit, one class a table."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Action = Literal["bind", "promote", "force"]


@dataclass(frozen=True)
class RunEntry:
    """A run as the registry knows it; `folder` is where it lay when it was recorded."""

    run_id: str
    created: str
    folder: str
    seal_sha256: str
    scenario: str
    scenario_sha256: str
    model_name: str
    model_digest: str
    baseline_model_digest: str | None
    first_release: bool


@dataclass(frozen=True)
class VerdictEntry:
    """What was decided of a run under a policy."""

    policy_sha256: str
    verdict: str


@dataclass(frozen=True)
class MetricEntry:
    """A metric of a run's candidate with its two-sided interval; None where there is none, and `reason` says why."""

    run_id: str
    name: str
    k: int | None
    slice: str | None
    value: float | None
    reason: str | None
    unit: str
    low: float | None
    high: float | None
    confidence: float | None
    n: int
    signature: str


@dataclass(frozen=True)
class AuditEntry:
    """One entry of the audit: an alias was bound to digests, or moved.

    Attributes:
        seq: its number.
        at: time in UTC, ISO 8601.
        who: the account and the machine.
        action: bind, promote, or force: moved although `overridden` stood against it.
        policy_sha256, scenario_sha256: what the alias demanded.
        previous_digest: of the model that the alias held before; None: it was empty.
        bundle: folder of the model; None for one that isn't a bundle.
        verdict: under the demanded policy; None where there was none.
        reason: given by who forced it.
    """

    seq: int
    at: str
    who: str
    action: Action
    alias: str
    policy_sha256: str
    scenario_sha256: str
    run_id: str | None = None
    run_folder: str | None = None
    seal_sha256: str | None = None
    previous_digest: str | None = None
    model_digest: str | None = None
    baseline_model_digest: str | None = None
    bundle: str | None = None
    verdict: str | None = None
    reason: str | None = None
    overridden: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Alias:
    """What an alias demands, and what it holds: None everywhere while it is empty."""

    name: str
    policy_sha256: str
    scenario_sha256: str
    model_digest: str | None = None
    bundle: str | None = None
    run_id: str | None = None
    at: str | None = None
    who: str | None = None
    action: Action | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
