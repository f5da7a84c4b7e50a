"""The business flow around the model: a folder with `flow.yaml` and the artefacts it names."""

import difflib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, model_validator

from evalkit.canonical import sha256_file, sha256_json
from evalkit.errors import InputError, as_written
from evalkit.scenario.additions_schema import Strict, Version1
from evalkit.yaml_source import YamlSource

FLOW_FILE = "flow.yaml"
_DEFAULT_THRESHOLD = 0.5


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError("leaves the flow's folder; put the file into it")
    return name


FileName = Annotated[str, Field(min_length=1), AfterValidator(_inside)]
Locale = Literal["en", "zh"]


class IntentRecogniser(Strict):
    """The intent recogniser; a best label less probable than `out_of_scope_below` is out of scope."""

    model: FileName
    out_of_scope_below: float = Field(default=0.35, ge=0, le=1)


class HandoverCosts(Strict):
    """What a wrong hand-over decision costs, in a unit of the business; a right one costs nothing."""

    needless: float = Field(gt=0)
    missed: float = Field(gt=0)


class HandoverPolicy(Strict):
    """When a dialogue goes to a human.

    Attributes:
        intents: labels that ask for it.
        words: risk words by language.
        confidence_below: an intent less probable than this speaks for it, the more so the less probable it is.
        after_failed_turns: out-of-scope turns in a row that bring it.
        threshold: hand-over score from which it is decided; 0.5 without costs.
        costs: in place of a threshold: the one at which either decision costs the same on average.
        reply: what the user is told, by language; silence isn't allowed.
    """

    intents: list[str] = Field(default=[])
    words: dict[Locale, list[str]] = Field(default={})
    confidence_below: float | None = Field(default=None, gt=0, le=1)
    after_failed_turns: int = Field(default=2, ge=1)
    threshold: float | None = Field(default=None, ge=0, le=1)
    costs: HandoverCosts | None = None
    reply: dict[Locale, Annotated[str, Field(min_length=1)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_threshold(self) -> "HandoverPolicy":
        if self.threshold is not None and self.costs is not None:
            raise ValueError("threshold and costs both say when it is decided; keep one")
        return self

    @property
    def decided_from(self) -> float:
        """The score from which it is decided.

        With p the probability that a hand-over is needed, handing over costs (1 - p) needless on average, answering
        p missed: the two are equal at p = needless / (needless + missed).
        """
        if self.costs is not None:
            return self.costs.needless / (self.costs.needless + self.costs.missed)
        return _DEFAULT_THRESHOLD if self.threshold is None else self.threshold


class SatisfactionPredictor(Strict):
    """The satisfaction predictor."""

    model: FileName


class Flow(Strict):
    """`flow.yaml`."""

    version: Version1
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    intent: IntentRecogniser | None = None
    handover: HandoverPolicy | None = None
    satisfaction: SatisfactionPredictor | None = None


@dataclass(frozen=True)
class LoadedFlow:
    """A checked flow folder.

    Attributes:
        path: the folder.
        flow: the content of flow.yaml.
        digest: SHA-256 over the resolved flow, its artefacts and their model cards.
    """

    path: Path
    flow: Flow
    digest: str

    def model_card(self, part: Literal["intent", "satisfaction"]) -> dict[str, Any] | None:
        """Measured quality of an artefact, from the card beside it; None where there is none.

        Raises:
            InputError: the card isn't a JSON object, is of another artefact, or holds an error that is none.
        """
        spec = self.flow.intent if part == "intent" else self.flow.satisfaction
        if spec is None:
            return None
        card = card_path(self.path / spec.model)
        if not card.is_file():
            return None
        try:
            content = orjson.loads(card.read_bytes())
        except orjson.JSONDecodeError as error:
            raise InputError(
                f"{card}:{error.lineno}: broken JSON: {error.msg}; fit the artefact again"
            ) from None
        if not isinstance(content, dict):
            raise InputError(f"{card}: a JSON object is needed; fit the artefact again")
        known = content.get("artefact_sha256")
        if known is not None and known != sha256_file(self.path / spec.model):
            raise InputError(
                f"{card}: describes another artefact than {spec.model} beside it; fit the artefact again"
            )
        off = content.get("mean_absolute_error", 0)
        if isinstance(off, bool) or not isinstance(off, int | float) or off < 0:
            # It widens intervals: below 0 it would narrow them.
            raise InputError(
                f"{card}: mean_absolute_error: a number of 0 or more is needed (got {as_written(off)}); fit the artefact again"
            )
        return content

    def intent_labels(self) -> frozenset[str] | None:
        """The labels that the recogniser can give, from its card; None where no card tells them.

        Raises:
            InputError: see `model_card`.
        """
        labels = (self.model_card("intent") or {}).get("labels")
        return frozenset(map(str, labels)) if isinstance(labels, dict) else None


def card_path(artefact: Path) -> Path:
    """Where the model card of an artefact lies: intent.skops → intent.card.json."""
    return artefact.with_suffix(".card.json")


def load_flow(folder: Path) -> LoadedFlow:
    """Read and check a flow folder.

    Raises:
        InputError: no folder, no or broken flow.yaml, an artefact is missing or empty, or a hand-over intent isn't among
            the recogniser's labels.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such flow folder; a folder with {FLOW_FILE} is needed")
    source = YamlSource(folder / FLOW_FILE)
    flow = source.parse(Flow)
    files: dict[str, str] = {}
    for part, spec in (("intent", flow.intent), ("satisfaction", flow.satisfaction)):
        if spec is None:
            continue
        artefact = folder / spec.model
        if not artefact.is_file() or artefact.stat().st_size == 0:
            raise source.error(
                (part, "model"), f"{artefact}: missing or empty; train it with `sandbox fit {part}`"
            )
        for file in (artefact, card_path(artefact)):
            if file.is_file():
                files[file.relative_to(folder).as_posix()] = sha256_file(file)
    content = flow.model_dump(mode="json", exclude_none=True)
    loaded = LoadedFlow(folder, flow, sha256_json({"flow": content, "files": files}))
    labels = loaded.intent_labels()
    for index, label in enumerate(flow.handover.intents if flow.handover and labels is not None else ()):
        if label not in (labels or ()):
            raise source.error(("handover", "intents", index), unknown_label(label, labels or frozenset()))
    return loaded


def unknown_label(label: str, labels: frozenset[str]) -> str:
    """What to say of an intent that the recogniser never gives."""
    near = difflib.get_close_matches(label, labels, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"its labels: {', '.join(sorted(labels)):.300}"
    return f"{label!r} isn't a label of the flow's intent recogniser ({hint}); correct it, or train with examples of it"
