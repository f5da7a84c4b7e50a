"""What a scenario adds to the metrics, read and checked: views, token classes, metrics, business figures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.metrics.context import BusinessSetup, ClassSetup, OwnSetup, ViewSetup
from evalkit.metrics.declared import Declared, add_figure, declare_metrics
from evalkit.metrics.history import read_history
from evalkit.metrics.mapping import OwnMapping, load_mapping
from evalkit.metrics.own import own_setup
from evalkit.metrics.own_classes import OwnClass, load_class
from evalkit.metrics.registry import robustness_specs
from evalkit.metrics.spec import OWN_PREFIX
from evalkit.metrics.views import SpanView, view_setup
from evalkit.perturbations.perturbation import Perturbation, build_perturbation
from evalkit.perturbations.schema import PerturbationSpec, files_of
from evalkit.scenario.additions_schema import Business
from evalkit.scenario.schema import Classes, Scenario
from evalkit.yaml_source import FieldPath, YamlSource


@dataclass(frozen=True)
class Additions:
    """The additions of one scenario.

    Attributes:
        modules: folder of its own modules, absolute, or None.
        views, own, business: how each is set up, in the scenario's order.
        classes: token classes of the user: how each is set up, and its code.
        span_views: the views whose tokens are found while scoring.
        declared: their declarations.
        robustness: perturbations of the texts.
    """

    modules: Path | None = None
    views: tuple[ViewSetup, ...] = ()
    own: tuple[OwnSetup, ...] = ()
    business: tuple[BusinessSetup, ...] = ()
    span_views: tuple[SpanView, ...] = ()
    declared: Declared = field(default_factory=Declared)
    classes: tuple[tuple[ClassSetup, OwnClass], ...] = ()
    robustness: tuple[Perturbation, ...] = ()

    def identity(self) -> dict[str, Any]:
        """What they are, by content, for the scenario's digest."""
        return {
            "views": [asdict(view) for view in self.views],
            "classes": [asdict(setup) for setup, _ in self.classes],
            "metrics": [asdict(metric) for metric in self.own],
            "business": [asdict(figure) for figure in self.business],
            "robustness": [{"name": one.name, **one.identity} for one in self.robustness],
        }


def read_additions(
    scenario: Scenario, source: YamlSource, file: Callable[[FieldPath, str], Path], folder: Path
) -> Additions:
    """Read everything that `text.views`, `text.classes.own`, `text.robustness`, `metrics` and `business` refer to.

    Args:
        scenario, source: the parsed file and its lines.
        file: resolves the path of a field to a file that is there.
        folder: of the scenario file.

    Raises:
        InputError: the first problem, with file, line and field; of a history its own file and line.
    """
    modules = None if scenario.modules is None else (folder / scenario.modules).resolve()
    if modules is not None and not modules.is_dir():
        raise source.error(("modules",), f"{modules}: no such folder; correct the path")
    views: list[ViewSetup] = []
    span_views: list[SpanView] = []
    for index, view in enumerate(scenario.text.views if scenario.text is not None else ()):
        with _named(source, ("text", "views", index)):
            setup, span_view = view_setup(view, modules)
        views.append(setup)
        span_views += [span_view] if span_view is not None else []
    classes = () if scenario.text is None else _classes(scenario.text.classes, source, modules)
    own = []
    for index, reference in enumerate(scenario.metrics):
        with _named(source, ("metrics", index)):
            own.append(own_setup(reference, modules))
    with _named(source, ("metrics",)):
        declared = declare_metrics(views, [setup for setup, _ in classes], [metric for _, metric in own])
    robustness = []
    for index, perturbation in enumerate(scenario.text.robustness if scenario.text is not None else ()):
        at: FieldPath = ("text", "robustness", index)
        robustness.append(_perturbation(perturbation, source, at, file))
    setups = [one.setup for one in robustness]
    declared = replace(declared, specs={**declared.specs, **robustness_specs(setups)})
    business = []
    for index, spec in enumerate(scenario.business):
        at = ("business", index)
        figure, mapping = _figure(spec, source, at, file, modules)
        with _named(source, (*at, "from")):
            declared = add_figure(declared, figure, mapping)
        business.append(figure)
    return Additions(
        modules,
        tuple(views),
        tuple(setup for setup, _ in own),
        tuple(business),
        tuple(span_views),
        declared,
        classes,
        tuple(robustness),
    )


def _classes(
    spec: Classes, source: YamlSource, modules: Path | None
) -> tuple[tuple[ClassSetup, OwnClass], ...]:
    at: FieldPath = ("text", "classes")
    loaded = []
    for index, reference in enumerate(spec.own):
        with _named(source, (*at, "own", index)):
            loaded.append(load_class(reference, modules))
    names = [setup.name for setup, _ in loaded]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise source.error((*at, "own", index), f"two classes are called {name}; rename one")
        if name not in spec.precedence:
            message = f"precedence doesn't name {name}, so that it would decide nothing; add it there"
            raise source.error((*at, "own", index), message)
    for index, name in enumerate(spec.precedence):
        if name.startswith(OWN_PREFIX) and name not in names:
            known = ", ".join(names) or "none"
            message = f"no class of `own` is called {name} (there are: {known})"
            raise source.error((*at, "precedence", index), message)
    return tuple(loaded)


def _perturbation(
    spec: PerturbationSpec, source: YamlSource, at: FieldPath, file: Callable[[FieldPath, str], Path]
) -> Perturbation:
    files = {field: file((*at, *field), name) for field, name in files_of(spec)}
    with _named(source, at):
        return build_perturbation(spec, files)


def _figure(
    spec: Business,
    source: YamlSource,
    at: FieldPath,
    file: Callable[[FieldPath, str], Path],
    modules: Path | None,
) -> tuple[BusinessSetup, OwnMapping | None]:
    history = mapping = own = None
    if spec.calibration is not None:
        history = read_history(file((*at, "calibration"), spec.calibration), spec.fit)
    if spec.mapping is not None:
        with _named(source, (*at, "mapping")):
            own, mapping = load_mapping(spec.mapping, modules)
    setup = BusinessSetup(
        name=spec.name,
        source=spec.source,
        version=spec.version,
        k=spec.k,
        slice=spec.slice,
        unit=spec.unit,
        direction=spec.direction,
        fit=None if history is None else spec.fit,
        history=history,
        own=own,
    )
    return setup, mapping


@contextmanager
def _named(source: YamlSource, at: FieldPath) -> Iterator[None]:
    """Errors within name the field and its line."""
    try:
        yield
    except InputError as error:
        raise source.error(at, str(error)) from None
