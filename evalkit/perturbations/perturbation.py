"""A perturbation ready for use: pure, seeded by run, perturbation and text alone."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

from evalkit.canonical import canonical_json, sha256_bytes, sha256_file, sha256_json, sha256_text
from evalkit.errors import InputError
from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.glossary import Glossary, read_glossary
from evalkit.perturbations.characters import fullwidth, recase, typos
from evalkit.perturbations.dates import reformat_dates
from evalkit.perturbations.entities import amounts_of, swap_amounts, swap_numbers, swap_terms
from evalkit.perturbations.language import sentences
from evalkit.perturbations.numbers import reformat_numbers
from evalkit.perturbations.passages import MixedIn, distract, drop_sentences, mix
from evalkit.perturbations.schema import (
    Case,
    Chain,
    Dates,
    Distract,
    DropSentences,
    FullWidth,
    Mix,
    Numbers,
    Script,
    StepSpec,
    SwapEntities,
    Typos,
    label,
    steps_of,
)
from evalkit.perturbations.script import script_converter, to_script
from evalkit.scoring.texts import TextItem, read_texts, unscorable
from evalkit.yaml_source import FieldPath

# Raised when equal texts, seeds and settings would give other texts than before.
_VERSION = 1

# What a perturbation does to the text, from least to most: the same content spelt otherwise, content added, content
# lost, another content.
Effect = Literal["respelt", "added", "removed", "altered"]
_EFFECTS: tuple[Effect, ...] = ("respelt", "added", "removed", "altered")

# Text, its generator, and the amounts of all texts.
SettingT = TypeVar("SettingT")
_Apply = Callable[[str, Random, Sequence[str]], str]


@dataclass(frozen=True)
class Step:
    """One perturbation.

    Attributes:
        kind: its name in the schema.
        effect: see `Effect`.
        apply: the function.
        identity: everything that determines it, by content.
    """

    kind: str
    effect: Effect
    apply: _Apply = field(compare=False)
    identity: Mapping[str, Any]


@dataclass(frozen=True)
class Perturbation:
    """One or several steps under one name.

    Attributes:
        name: what its metrics are called by.
        steps: in order.
        description: of the settings, for people.
    """

    name: str
    steps: tuple[Step, ...]
    description: str

    @property
    def effect(self) -> Effect:
        """The strongest of its steps."""
        return max((step.effect for step in self.steps), key=_EFFECTS.index)

    @property
    def identity(self) -> dict[str, Any]:
        """What it is, by content; the name isn't part of it."""
        return {"steps": [dict(step.identity) for step in self.steps], "version": _VERSION}

    @property
    def setup(self) -> RobustnessSetup:
        """What the metrics know of it."""
        return RobustnessSetup(self.name, self.effect, sha256_json(self.identity), self.description)

    def apply(self, text: str, run_seed: int, amounts: Sequence[str] = ()) -> str:
        """The perturbed text; never an empty one.

        Each step draws from a generator of its own, seeded by SHA-256 of run seed, kind of step and the text that it
        gets: neither order nor company of the texts changes a character.

        Args:
            text: any.
            run_seed: of the run.
            amounts: of all texts, sorted (see `amounts_of`); only swapped amounts look at them.
        """
        for step in self.steps:
            changed = step.apply(text, Random(text_seed(run_seed, step.kind, text)), amounts)
            text = changed if changed.strip() else text
        return text


@dataclass(frozen=True)
class PerturbedTexts:
    """The texts of a run under one perturbation; ids, clusters and tags stay.

    Attributes:
        setup: the perturbation.
        items: in the order of the originals.
    """

    setup: RobustnessSetup
    items: tuple[TextItem, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over ids and texts, in any order of theirs."""
        return sha256_json(sorted((item.sample_id, item.digest) for item in self.items))

    def of(self, sample_ids: Container[str]) -> "PerturbedTexts":
        """Those of some originals."""
        return replace(self, items=tuple(item for item in self.items if item.sample_id in sample_ids))


def text_seed(run_seed: int, kind: str, text: str) -> int:
    """Seed of one step on one text, 63 bits: the same in every process."""
    return int(sha256_bytes(canonical_json([run_seed, kind, sha256_text(text)]))[:16], 16) >> 1


def perturbed(perturbation: Perturbation, items: Sequence[TextItem], run_seed: int) -> PerturbedTexts:
    """Perturb texts; what no model can be asked about stays as it is."""
    readable = [item for item in items if unscorable(item.text) is None]
    amounts = amounts_of(item.text for item in readable)
    changed = {item.sample_id: perturbation.apply(item.text, run_seed, amounts) for item in readable}
    return PerturbedTexts(
        perturbation.setup,
        tuple(
            TextItem(item.sample_id, changed.get(item.sample_id, item.text), item.cluster, item.tags)
            for item in items
        ),
    )


def build_perturbation(spec: StepSpec | Chain, files: Mapping[FieldPath, Path]) -> Perturbation:
    """Prepare a perturbation and read what it refers to.

    Args:
        spec: as the scenario declares it.
        files: where each file that it names is (see `files_of`), by field path inside the spec.

    Raises:
        InputError: a file is missing or broken, or a package isn't installed.
    """
    steps = list(steps_of(spec))
    return Perturbation(
        name=label(spec),
        steps=tuple(_step(step, at, files) for at, step in steps),
        description=" + ".join(_described(step) for _, step in steps),
    )


def _step(spec: StepSpec, at: FieldPath, files: Mapping[FieldPath, Path]) -> Step:
    content: dict[str, str] = {}
    effect: Effect = "respelt"
    if isinstance(spec, Typos):
        apply = _drawn(typos, spec.rate)
    elif isinstance(spec, Case):
        apply = _drawn(recase, spec.to)
    elif isinstance(spec, FullWidth):
        apply = _drawn(fullwidth, spec.rate)
    elif isinstance(spec, Numbers):
        apply = _drawn(reformat_numbers, spec.to)
    elif isinstance(spec, Dates):
        apply = _drawn(reformat_dates, spec.to)
    elif isinstance(spec, Script):
        apply = _drawn(to_script, script_converter(spec.to))
    elif isinstance(spec, DropSentences):
        effect, apply = "removed", _drawn(drop_sentences, spec.rate)
    elif isinstance(spec, Distract):
        effect, apply = "added", _drawn(distract, spec.count)
    elif isinstance(spec, Mix):
        path = files[(*at, "data")]
        effect, apply = "added", _drawn(mix, MixedIn(_foreign(path), spec.rate))
        content["data"] = sha256_file(path)
    else:
        effect = "altered"
        apply, content = _swap(spec, at, files)
    settings = spec.model_dump(mode="json", exclude={"name", "data", "glossary"})
    return Step(spec.perturb, effect, apply, {**settings, **content})


def _drawn(function: Callable[[str, Random, SettingT], str], setting: SettingT) -> _Apply:
    return lambda text, random, _: function(text, random, setting)


def _swap(
    spec: SwapEntities, at: FieldPath, files: Mapping[FieldPath, Path]
) -> tuple[_Apply, dict[str, str]]:
    kinds = tuple(spec.entities)
    content: dict[str, str] = {}
    terms: tuple[str, ...] = ()
    if spec.glossary is not None:
        path = files[(*at, "glossary")]
        terms = read_glossary(path)
        content["glossary"] = sha256_file(path)
    glossary = Glossary(terms) if terms else None

    def apply(text: str, random: Random, amounts: Sequence[str]) -> str:
        if "amounts" in kinds:
            text = swap_amounts(text, random, amounts)
        if "numbers" in kinds:
            text = swap_numbers(text, random)
        if glossary is not None:
            text = swap_terms(text, random, glossary, terms)
        return text

    return apply, content


def _foreign(path: Path) -> tuple[str, ...]:
    """The sentences of a file of texts, sorted, each once."""
    found = {part.strip() for item in read_texts(path) for part in sentences(item.text)}
    readable = sorted(part for part in found if unscorable(part) is None)
    if not readable:
        raise InputError(f"{path}: holds no sentence that could be mixed in; put texts into it")
    return tuple(readable)


def _described(spec: StepSpec) -> str:
    settings = spec.model_dump(mode="json", exclude={"name", "perturb"}, exclude_none=True)
    shown = ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())
    return f"{spec.perturb} ({shown})" if shown else spec.perturb


def _shown(value: Any) -> str:
    return (
        "+".join(value)
        if isinstance(value, list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
