"""How the metrics of the texts move when the texts are perturbed: paired by text, clusters respected.

Texts that are ok both clean and perturbed are compared, those that the perturbation leaves as they are included. Where a
perturbation only respells (typing errors, full-width forms, formats), perplexity and bits per byte count the surprise of
the perturbed text on the tokens, words and bytes of the clean one: full-width letters have three bytes, and a model that
finds each of them likely has not become a better one. Where content is added or lost, each text has its own units.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evalkit.metrics import logits, perplexity
from evalkit.metrics.context import MetricContext, RobustnessSetup
from evalkit.metrics.estimators import FloatArray, NamedEstimator, RatioEstimator
from evalkit.metrics.registry import metric_names, spec_for
from evalkit.metrics.robustness_specs import measured, robustness_name
from evalkit.metrics.text_sums import TextSums
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord
from evalkit.runs.samples import Samples
from evalkit.statistics.intervals import MIN_CLUSTERS
from evalkit.statistics.paired import ChangeEstimator, ChangeKind

HEADLINE = "perplexity/token"
"""The metric that is measured for every tag, to name the worst slice."""

_PER_UNIT = ("perplexity/token", "perplexity/word", "perplexity/byte", "bits_per_byte")


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """robustness/<perturbation>/<metric> over all texts and each asked slice, the headline for every tag."""
    if not context.robustness:
        return []
    clean = {record.sample_id: record for record in evidence.columns.of_kind("text").listed()}
    perturbed = evidence.columns.of_kind("perturbed").listed()
    found: list[NamedEstimator] = []
    for setup in context.robustness:
        changed = {record.source_id: record for record in perturbed if record.perturbation == setup.name}
        found += _of_perturbation(setup, clean, changed, context)
    return found


def _of_perturbation(
    setup: RobustnessSetup,
    clean: dict[str, SampleRecord],
    changed: dict[str, SampleRecord],
    context: MetricContext,
) -> list[NamedEstimator]:
    tags = sorted({tag for record in clean.values() for tag in record.tags})
    overall = _of_slice(setup, clean, changed, context, None, measured(metric_names()))
    slices = [
        named
        for tag in tags
        for named in _of_slice(
            setup,
            {name: record for name, record in clean.items() if tag in record.tags},
            changed,
            context,
            tag,
            measured(metric_names()) if tag in context.slices else (HEADLINE,),
        )
    ]
    worst = _worst([named for named in slices if named.name == robustness_name(setup.name, HEADLINE)])
    return [
        replace(named, details={**named.details, **worst})
        if named.name == robustness_name(setup.name, HEADLINE)
        else named
        for named in overall
    ] + slices


def _of_slice(
    setup: RobustnessSetup,
    clean: dict[str, SampleRecord],
    changed: dict[str, SampleRecord],
    context: MetricContext,
    slice: str | None,
    names: Sequence[str],
) -> list[NamedEstimator]:
    pairs = [(record, changed[name]) for name, record in sorted(clean.items()) if name in changed]
    ok = [(ours, theirs) for ours, theirs in pairs if ours.status == theirs.status == "ok"]
    scored = [(ours, theirs) for ours, theirs in ok if ours.scored and theirs.scored]
    touched = sum(ours.digest != theirs.digest for ours, theirs in scored)
    own = tuple(one.name for one in context.classes)
    sums = [
        TextSums(slice, Samples.of([pair[side] for pair in scored]), len(clean), context.absent, own)
        for side in (0, 1)
    ]
    coverage = len(ok) / len(clean) if clean else None
    details: dict[str, Any] = {
        "perturbation": setup.description,
        "effect": setup.effect,
        "keeps_meaning": setup.keeps_meaning,
        "texts_compared": len(scored),
        "texts_changed": touched,
    }
    return [
        _change(
            setup.name,
            name,
            before,
            after,
            NamedEstimator("", slice=slice, coverage=coverage, details=details),
        )
        for name, before, after in _pairs(*sums, respelt=setup.effect == "respelt")
        if name in names
    ]


def _change(
    perturbation: str, metric: str, before: NamedEstimator, after: NamedEstimator, frame: NamedEstimator
) -> NamedEstimator:
    """The change of one metric; `frame` holds what all metrics of a slice share."""
    frame = replace(frame, name=robustness_name(perturbation, metric))
    reason = before.reason or after.reason
    if before.estimator is None or after.estimator is None or reason is not None:
        return replace(frame, reason=reason)
    values = {"clean": before.estimator.value, "perturbed": after.estimator.value}
    frame = replace(frame, details={**frame.details, **values})
    if not frame.details["texts_changed"]:
        # A perturbation that did nothing shows nothing: it must not read as a model that withstands it.
        compared = frame.details["texts_compared"]
        return replace(frame, reason=f"the perturbation changes none of the {compared} texts")
    kind: ChangeKind = "relative" if spec_for(metric).log_scale else "absolute"
    change = ChangeEstimator.build(after.estimator, before.estimator, kind)
    return replace(frame, estimator=change, reason=None if change.value is not None else change.reason())


def _pairs(
    clean: TextSums, changed: TextSums, *, respelt: bool
) -> Iterator[tuple[str, NamedEstimator, NamedEstimator]]:
    """Each metric before and after, over the same clusters."""
    before, after = _by_name(clean), _by_name(changed)
    clusters = [record.cluster for record in clean.scored]
    nll = RatioEstimator.from_units(clusters, changed.column("nll"), np.ones(len(clusters))).numerators
    for name, ours in before.items():
        theirs = after.get(name)
        if respelt and name in _PER_UNIT and isinstance(ours.estimator, RatioEstimator):
            # Every text has units, so that the clusters are those of the texts.
            yield name, ours, replace(ours, estimator=replace(ours.estimator, numerators=nll))
        elif theirs is None:
            continue
        elif isinstance(ours.estimator, RatioEstimator) and isinstance(theirs.estimator, RatioEstimator):
            union = tuple(sorted({*ours.estimator.clusters, *theirs.estimator.clusters}))
            yield (
                name,
                replace(ours, estimator=_over(ours.estimator, union)),
                replace(theirs, estimator=_over(theirs.estimator, union)),
            )
        else:
            yield name, ours, theirs


def _by_name(sums: TextSums) -> dict[str, NamedEstimator]:
    return {named.name: named for named in (*perplexity.of_texts(sums), *logits.of_tokens(sums, None))}


def _over(estimator: RatioEstimator, clusters: tuple[str, ...]) -> RatioEstimator:
    """The same ratio over more clusters, of which the new ones hold nothing."""
    position = {cluster: index for index, cluster in enumerate(clusters)}
    place = np.array([position[cluster] for cluster in estimator.clusters], dtype=np.intp)

    def spread(values: FloatArray) -> FloatArray:
        wide = np.zeros(len(clusters))
        wide[place] = values
        return wide

    return replace(
        estimator,
        clusters=clusters,
        numerators=spread(estimator.numerators),
        denominators=spread(estimator.denominators),
    )


def _worst(slices: Sequence[NamedEstimator]) -> dict[str, Any]:
    """The slice in which the headline rises most, of those that are large enough for an interval."""
    large = [
        (named.estimator.value, named)
        for named in slices
        if named.estimator is not None
        and named.estimator.value is not None
        and len(named.estimator.clusters) >= MIN_CLUSTERS
    ]
    found: dict[str, Any] = {"slices_measured": len(large), "slices_too_small": len(slices) - len(large)}
    if large:
        value, worst = max(large, key=lambda item: (item[0], item[1].slice or ""))
        found |= {"worst_slice": worst.slice, "worst_slice_value": value}
    return found
