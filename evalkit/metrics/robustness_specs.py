"""Declarations of robustness/<perturbation>/<metric>: how a metric of the texts moves when they are perturbed."""

import math
from collections.abc import Iterable, Mapping

from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.spec import ROBUSTNESS_PREFIX, MetricSpec

RELATIVE = "relative change"

_WORSE = {"lower": "rises", "higher": "falls"}


def robustness_name(perturbation: str, metric: str) -> str:
    """Name of a metric under a perturbation."""
    return f"{ROBUSTNESS_PREFIX}{perturbation}/{metric}"


def robustness_spec(perturbation: str, base: MetricSpec, metric: str) -> MetricSpec:
    """The declaration of `metric` under a perturbation.

    The value is the paired difference to the clean texts: the relative change (perturbed - clean) / clean of
    perplexities and bits per byte, perturbed - clean of everything else. Its direction is that of the metric.

    Args:
        perturbation: its name in the scenario.
        base: the metric's own declaration.
        metric: its name in full.
    """
    relative = base.log_scale
    support = (-1.0, math.inf) if relative else (-1.0, 1.0) if base.unit == "share" else (-math.inf, math.inf)
    alarm = "by 20 %" if relative else "by 0.02" if base.unit == "share" else "clearly"
    return MetricSpec(
        name=robustness_name(perturbation, metric),
        unit=RELATIVE if relative else base.unit,
        direction=base.direction,
        family=f"{ROBUSTNESS_PREFIX}{perturbation}/{base.family}",
        method="cluster-bootstrap",
        support=support,
        action=f"{metric} {_WORSE[base.direction]} {alarm} under {perturbation}: the model depends on how texts are "
        "written; add such texts to the training data, the worst slice first.",
        two_sided=base.two_sided,
    )


def parse_robustness(name: str, by_name: Mapping[str, MetricSpec]) -> MetricSpec | None:
    """The declaration of a full name robustness/<perturbation>/<metric>; None where it isn't one."""
    perturbation, _, metric = name.removeprefix(ROBUSTNESS_PREFIX).partition("/")
    if not name.startswith(ROBUSTNESS_PREFIX) or not perturbation or metric not in measured(by_name):
        return None
    return robustness_spec(perturbation, by_name[metric], metric)


def declared_robustness(
    setups: Iterable[RobustnessSetup], by_name: Mapping[str, MetricSpec]
) -> dict[str, MetricSpec]:
    """Declarations of everything that the perturbations of a scenario are measured by."""
    found = (
        robustness_spec(setup.name, by_name[metric], metric)
        for setup in setups
        for metric in measured(by_name)
    )
    return {spec.name: spec for spec in found}


def measured(by_name: Iterable[str]) -> tuple[str, ...]:
    """Metrics of the texts that exist under a perturbation; the logits' ones not by class."""
    return tuple(
        name
        for name in by_name
        if name.startswith(("perplexity/", "rate/"))
        or name == "bits_per_byte"
        or (name.startswith("logits/") and name.count("/") == 1)
    )


def robustness_signatures(base: Mapping[str, str], setups: Iterable[RobustnessSetup]) -> dict[str, str]:
    """Signatures of the metrics under each perturbation, by family: that of the clean texts, and what was done to them."""
    return {
        f"{ROBUSTNESS_PREFIX}{setup.name}/{family}": f"{base[family]}|perturb:{setup.digest[:8]}"
        for setup in setups
        for family in ("text", "bytes", "words")
        if family in base
    }
