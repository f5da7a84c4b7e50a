"""The business flow around the model: a folder with `flow.yaml` and the artefacts it names."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from evalkit.canonical import sha256_file, sha256_json
from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource

FLOW_FILE = "flow.yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError("leaves the flow's folder; put the file into it")
    return name


FileName = Annotated[str, Field(min_length=1), AfterValidator(_inside)]
Locale = Literal["en", "zh"]


class IntentRecogniser(_Strict):
    """The intent recogniser; a best label less probable than `out_of_scope_below` is out of scope."""

    model: FileName
    out_of_scope_below: float = Field(default=0.35, ge=0, le=1)


class HandoverPolicy(_Strict):
    """When a dialogue goes to a human.

    Attributes:
        intents: labels that ask for it.
        words: risk words by language.
        after_failed_turns: out-of-scope turns in a row that bring it.
        threshold: hand-over score from which it is decided.
        reply: what the user is told, by language; silence isn't allowed.
    """

    intents: list[str] = []
    words: dict[Locale, list[str]] = {}
    after_failed_turns: int = Field(default=2, ge=1)
    threshold: float = Field(default=0.5, ge=0, le=1)
    reply: dict[Locale, Annotated[str, Field(min_length=1)]] = Field(min_length=1)


class SatisfactionPredictor(_Strict):
    """The satisfaction predictor."""

    model: FileName


class Flow(_Strict):
    """`flow.yaml`."""

    version: Literal[1]
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
            InputError: the card isn't a JSON object.
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
        return content


def card_path(artefact: Path) -> Path:
    """Where the model card of an artefact lies: intent.skops → intent.card.json."""
    return artefact.with_suffix(".card.json")


def load_flow(folder: Path) -> LoadedFlow:
    """Read and check a flow folder.

    Raises:
        InputError: no folder, no or broken flow.yaml, or an artefact is missing or empty.
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
    return LoadedFlow(folder, flow, sha256_json({"flow": flow.model_dump(mode="json"), "files": files}))
