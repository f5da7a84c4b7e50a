"""Mappings of the user from a metric to a business figure: monotone functions. See docs/own-metrics.md."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalkit.errors import InputError
from evalkit.metrics.context import OwnSetup
from evalkit.metrics.estimators import Estimator, FloatArray, MappedEstimator
from evalkit.metrics.references import load_reference
from evalkit.metrics.result import Direction


@dataclass(frozen=True)
class OwnMapping:
    """The declaration of a user's mapping from a metric to a business figure.

    Attributes:
        version: by its owner; raise it when the figure means something else.
        unit: of the figure.
        direction: which way is better.
        rising: whether the figure rises with the metric (else it falls): the ends of the interval follow.
        compute: the figure for one value of the metric.
        action: what to do when the figure is bad.
    """

    version: str
    unit: str
    direction: Direction
    rising: bool
    compute: Callable[[float], float]
    action: str


class OwnFigure(MappedEstimator):
    """A statistic through a user's mapping."""

    def __init__(self, inner: Estimator, mapping: OwnMapping) -> None:
        super().__init__(inner)
        self.mapping = mapping

    def map(self, values: FloatArray) -> FloatArray:
        """See `MappedEstimator.map`."""
        return np.array([mapped(self.mapping, float(value)) for value in values])


def mapped(mapping: OwnMapping, value: float) -> float:
    """The figure for a value.

    Raises:
        InputError: the user's function fails.
    """
    try:
        return float(mapping.compute(value))
    except Exception as error:  # a user's function may raise anything
        raise InputError(
            f"business: the mapping failed at {value} with {type(error).__name__}: {error}"
        ) from None


def load_mapping(
    reference: str, modules: Path | None, sha256: str | None = None
) -> tuple[OwnSetup, OwnMapping]:
    """Load a user's mapping.

    Raises:
        InputError: it can't be loaded, or isn't an `OwnMapping`.
    """
    loaded = load_reference(reference, modules, sha256)
    if not isinstance(loaded.target, OwnMapping):
        raise InputError(
            f"{reference}: an evalkit.metrics.business.OwnMapping is needed "
            f"(got {type(loaded.target).__name__}); see docs/own-metrics.md"
        )
    return OwnSetup(reference, loaded.sha256), loaded.target
