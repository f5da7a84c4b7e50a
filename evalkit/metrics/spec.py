"""What is declared of a metric, by us, by a scenario or by a user."""

from dataclasses import dataclass
from typing import Literal

from evalkit.metrics.estimators import IntervalMethod
from evalkit.metrics.result import Direction

# Whose protocol signature a number carries. Per-byte and per-word numbers don't depend on the tokenizer
# ("bytes", "words").
Family = Literal["text", "bytes", "words", "risk", "calibration", "cost", "dialogue", "dialogue_cost"]

# Metrics that a scenario declares (see evalkit.metrics.declared).
VIEW_PREFIX = "perplexity/view/"
OWN_PREFIX = "own/"
BUSINESS_PREFIX = "business/"
ROBUSTNESS_PREFIX = "robustness/"
_DECLARED_PREFIXES = (VIEW_PREFIX, OWN_PREFIX, BUSINESS_PREFIX, ROBUSTNESS_PREFIX)


def is_declared(name: str) -> bool:
    """Whether a scenario declares the metric; without one at hand nothing is known of it."""
    # A metric of a user's token class holds the class's name: perplexity/own/amounts.
    return name.startswith(_DECLARED_PREFIXES) or f"/{OWN_PREFIX}" in name


@dataclass(frozen=True)
class MetricSpec:
    """The declaration of one metric, or of one family of names.

    Attributes:
        name: in full; `<class>` stands for any token class.
        unit: of the value.
        direction: which way is better.
        family: whose protocol signature the number carries: a `Family`, or the name of a declared metric itself.
        method: how the interval is made.
        support: smallest and largest possible value.
        action: what to do when the value is bad, with the value at which that is usually said.
        log_scale: whether a small-sample interval is made on the logarithm.
        two_sided: whether the good side can be left too far behind: a rule may then give the value a floor as well
            as a ceiling, whatever the direction.
    """

    name: str
    unit: str
    direction: Direction
    family: str
    method: IntervalMethod
    support: tuple[float, float]
    action: str
    log_scale: bool = False
    two_sided: bool = False
