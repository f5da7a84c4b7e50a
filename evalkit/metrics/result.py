"""What a metric evaluates to: a value with its uncertainty, or null with the reason."""

from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["lower", "higher"]


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low, high: the ends; None where that side can't be computed (never an invented zero width).
        confidence: of the whole interval (sides 2) or of each end taken alone (sides 1).
        sides: 2 for the interval that is shown, 1 for the pair of one-sided bounds that the judge uses.
        method: cluster-bootstrap, bootstrap-t, exact-binomial, ...
        resamples, seed: of a bootstrap, else None.
    """

    low: float | None
    high: float | None
    confidence: float
    sides: Literal[1, 2]
    method: str
    resamples: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class MetricResult:
    """One entry of results.json. Name, k and slice together are unique.

    Attributes:
        name: metric name in full, e.g. perplexity/long_tail.
        k: only for dialogue/pass_hat_k.
        slice: a tag, or None for all.
        value, reason: exactly one of the two is None.
        unit, direction, action: from the registry; action says what to do when it is bad.
        n: tokens, decisions, dialogues or turns in the denominator; clusters: independent units among them.
        coverage: share of the planned units that gave a result.
        interval: two-sided; bounds: the pair of one-sided ends that the judge uses. None where not
            computable.
        signature: how the number was made; numbers of unequal signatures aren't comparable.
        details: further fields, written beside the others (p95, p99, counts).
    """

    name: str
    value: float | None
    reason: str | None
    unit: str
    direction: Direction
    n: int
    clusters: int
    signature: str
    k: int | None = None
    slice: str | None = None
    coverage: float | None = 1.0
    interval: Interval | None = None
    bounds: Interval | None = None
    action: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
