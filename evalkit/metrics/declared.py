"""What a scenario adds to the registry: views, token classes, metrics of the user, business figures, each with its declaration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalkit.errors import InputError
from evalkit.metrics.business import business_signature, business_spec, calibration
from evalkit.metrics.context import BusinessSetup, ClassSetup, MetricContext, OwnSetup, ViewSetup
from evalkit.metrics.history import Calibration
from evalkit.metrics.mapping import OwnMapping, load_mapping
from evalkit.metrics.own import OwnMetric, load_own, own_signature
from evalkit.metrics.references import modules_folder
from evalkit.metrics.registry import CLASS_METRICS, TOKEN_CLASSES, spec_for
from evalkit.metrics.spec import BUSINESS_PREFIX, VIEW_PREFIX, MetricSpec


@dataclass(frozen=True)
class Declared:
    """The additions of one scenario.

    Attributes:
        specs: declarations by name.
        own: metrics of the user.
        mappings: the user's own mappings, by figure.
        calibrations: fitted histories, by figure.
    """

    specs: Mapping[str, MetricSpec] = field(default_factory=dict)
    own: tuple[OwnMetric, ...] = ()
    mappings: Mapping[str, OwnMapping] = field(default_factory=dict)
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def spec(self, name: str) -> MetricSpec:
        """The declaration of a metric, the scenario's or the registry's.

        Raises:
            InputError: no metric has this name.
        """
        found = self.specs.get(name)
        return spec_for(name) if found is None else found


def declare(context: MetricContext) -> Declared:
    """The additions that an evaluation speaks of.

    Raises:
        InputError: the user's code isn't there or isn't that of the run.
    """
    declared = declare_metrics(context.views, context.classes, load_own(context))
    for setup in context.business:
        mapping = None
        if setup.own is not None:
            _, mapping = load_mapping(setup.own.reference, modules_folder(), setup.own.sha256)
        declared = add_figure(declared, setup, mapping)
    return declared


def declare_metrics(
    views: Sequence[ViewSetup], classes: Sequence[ClassSetup], own: Sequence[OwnMetric]
) -> Declared:
    """Views, token classes and metrics of the user.

    Raises:
        InputError: two metrics have one name.
    """
    specs = {spec.name: spec for spec in map(_view_spec, views)}
    specs |= {spec.name: spec for one in classes for spec in _class_specs(one)}
    for metric in own:
        if metric.name in specs:
            raise InputError(f"{metric.name}: two metrics have this name; rename one")
        specs[metric.name] = metric.spec
    return Declared(specs, tuple(own))


def add_figure(declared: Declared, setup: BusinessSetup, mapping: OwnMapping | None) -> Declared:
    """The additions with one business figure more.

    Raises:
        InputError: its metric is unknown or a figure itself, or its history contradicts the directions.
    """
    if setup.source.startswith(BUSINESS_PREFIX):
        raise InputError(f"{setup.source} is a business figure; name the metric that it comes from")
    source = declared.spec(setup.source)
    spec = business_spec(setup, source, mapping)
    fitted = {} if setup.history is None else {setup.name: calibration(setup, source)}
    return Declared(
        specs={**declared.specs, spec.name: spec},
        own=declared.own,
        mappings={**declared.mappings, **({} if mapping is None else {setup.name: mapping})},
        calibrations={**declared.calibrations, **fitted},
    )


def declared_signatures(
    base: Mapping[str, str],
    declared: Declared,
    views: Sequence[ViewSetup],
    own: Sequence[OwnSetup],
    business: Sequence[BusinessSetup],
) -> dict[str, str]:
    """Signatures of the additions, by name: that of what they stand on, with the digest of their declaration.

    Args:
        base: signatures by family.
        declared: the additions.
        views, own, business: how they are set up; `own` in the order of `declared.own`.
    """
    found = {VIEW_PREFIX + view.name: f"{base.get('text', 'none')}|view:{view.digest[:8]}" for view in views}
    for metric, setup in zip(declared.own, own, strict=True):
        found[metric.name] = own_signature(dict(base), metric, setup)
    for figure in business:
        family = declared.spec(figure.source).family
        source = found.get(figure.source) or base.get(family, "none")
        found[BUSINESS_PREFIX + figure.name] = business_signature(figure, source)
    return found


def _class_specs(setup: ClassSetup) -> Iterator[MetricSpec]:
    for stem in CLASS_METRICS:
        pattern = spec_for(f"{stem}/{TOKEN_CLASSES[0]}")
        own = f"{100 * setup.alarm:g} % above the baseline: {setup.action}"
        action = own if stem == "perplexity" else pattern.action
        yield replace(pattern, name=f"{stem}/{setup.name}", action=action)


def _view_spec(view: ViewSetup) -> MetricSpec:
    pattern = spec_for("perplexity/token")
    name = VIEW_PREFIX + view.name
    return MetricSpec(
        name=name,
        unit=pattern.unit,
        direction=pattern.direction,
        family=name,
        method=pattern.method,
        support=pattern.support,
        action="10 % above the baseline: these tokens got worse than the rest; raise their share in training.",
        log_scale=pattern.log_scale,
    )
