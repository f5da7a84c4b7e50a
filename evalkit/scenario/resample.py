"""What a scenario re-weights its texts to: the target's file and the features, read and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.resampling.features import (
    BUILT_IN,
    ENTITY_DENSITY,
    NUMBER_DENSITY,
    TERM_DENSITY,
    TOKEN_LENGTH,
    Feature,
    entity_density,
    number_density,
    own_feature,
    term_density,
    token_length,
)
from evalkit.scenario.schema import Scenario
from evalkit.tokenization import TextTokenizer
from evalkit.yaml_source import FieldPath, YamlSource


@dataclass(frozen=True)
class LoadedResample:
    """The target and features of `text.resample`.

    Attributes:
        target: its file.
        names: of the features, in the scenario's order.
        own: the user's among them.
    """

    target: Path
    names: tuple[str, ...]
    own: dict[str, Feature] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """What it is, by content, for the scenario's digest."""
        own = {name: feature.identity for name, feature in self.own.items()}
        return {"target": sha256_file(self.target), "own": own}

    def features(
        self, tokenizer: TextTokenizer | None, tokenizer_sha256: str, terms: Sequence[str] | None
    ) -> tuple[Feature, ...]:
        """The features under one tokenizer.

        Args:
            tokenizer, tokenizer_sha256: of the candidate; None where it isn't known.
            terms: of the scenario's glossary, which count as entities.

        Raises:
            InputError: token_length without a tokenizer, or term_density without terms.
        """
        found = []
        for name in self.names:
            if name == TOKEN_LENGTH:
                if tokenizer is None:
                    raise InputError("token_length needs the model's tokenizer; add it to the model")
                found.append(token_length(tokenizer, tokenizer_sha256))
            elif name == ENTITY_DENSITY:
                found.append(entity_density(terms))
            elif name == NUMBER_DENSITY:
                found.append(number_density())
            elif name == TERM_DENSITY:
                found.append(term_density(terms or ()))
            else:
                found.append(self.own[name])
        return tuple(found)


def read_resample(
    scenario: Scenario, source: YamlSource, file: Callable[[FieldPath, str], Path], modules: Path | None
) -> LoadedResample | None:
    """Follow the references of `text.resample`; None where the scenario has none.

    Args:
        scenario, source: the parsed file and its lines.
        file: resolves the path of a field to a file that is there.
        modules: folder of the scenario's own modules.

    Raises:
        InputError: the target isn't there, or a feature can't be loaded; with file, line and field.
    """
    if scenario.text is None or scenario.text.resample is None:
        return None
    spec, at = scenario.text.resample, ("text", "resample")
    own = {}
    for index, name in enumerate(spec.features):
        if name == TERM_DENSITY and scenario.text.classes.domain is None:
            raise source.error(
                (*at, "features", index),
                f"{name!r}: there is no glossary; give text.classes.domain.glossary",
            )
        if name in BUILT_IN:
            continue
        if ":" not in name:
            message = f"{name!r}: unknown; choose from {', '.join(BUILT_IN)}, and module:function of your own"
            raise source.error((*at, "features", index), message)
        try:
            own[name] = own_feature(name, modules)
        except InputError as error:
            raise source.error((*at, "features", index), str(error)) from None
    return LoadedResample(file((*at, "target"), spec.target), tuple(spec.features), own)
