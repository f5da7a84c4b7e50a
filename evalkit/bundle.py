"""The bundle: a folder that holds one exported model and everything needed to score and serve it.

Loading checks the manifest, every size and digest, that no path leaves the folder and that each MindIR graph uses
only operators from the allow-list, before MindSpore sees a byte. Nothing is ever unpickled.
"""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalkit.canonical import canonical_json, sha256_bytes, sha256_file, sha256_json
from evalkit.errors import InputError
from evalkit.operators import check_operators

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from evalkit.tokenization import TextTokenizer

SCHEMA = "evalkit.bundle/1"
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
TOKEN_COUNTS = "token_counts.npz"
WORD_COUNTS = "word_counts.tsv.gz"
# The roles of the ONNX twins; one graph may play prefill and decode.
SCORE_ONNX, PREFILL_ONNX, DECODE_ONNX = "score_onnx", "prefill_onnx", "decode_onnx"
# Optional graphs that give raw logits, and the ONNX twin.
LOGITS, LOGITS_ONNX = "logits", "logits_onnx"

_MAX_MANIFEST_BYTES = 8 << 20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Strict):
    """The architecture by numbers; its canonical JSON is part of the model's identity."""

    family: Literal["llama", "gpt2"]
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=1)
    max_length: int = Field(gt=1)
    attention_window: int | None = Field(default=None, gt=0)
    norm: Literal["rmsnorm", "layernorm"]
    norm_eps: float = Field(gt=0)
    positions: Literal["rotary", "learned"]
    rope_theta: float = Field(default=10000.0, gt=0)
    activation: Literal["swiglu", "gelu"]
    tied_head: bool
    bias: bool = False
    parameters: int = Field(gt=0)
    dtype: Literal["float32"]

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads


class TokenizerSpec(_Strict):
    """The tokenizer's digest and the ids that frame a text."""

    sha256: str
    prefix_token: int | None
    end_token: int | None
    chat_template: str | None


class GraphPort(_Strict):
    """One input or output of a graph; null stands for a dynamic dimension."""

    name: str
    dtype: str
    shape: list[int | None]


class GraphSpec(_Strict):
    """One graph of the bundle: its file and its ports in call order."""

    format: Literal["mindir", "onnx", "air"]
    file: str
    inputs: list[GraphPort] = []
    outputs: list[GraphPort] = []


class FileSpec(_Strict):
    """Digest and size of one file of the bundle."""

    sha256: str
    bytes: int = Field(ge=0)


class Parity(BaseModel):
    """How far a graph's log-probabilities lie from the checkpoint's, on real text."""

    model_config = ConfigDict(extra="allow", frozen=True)

    tokens: int
    max_abs_logprob_diff: float
    mean_abs_logprob_diff: float


class Manifest(BaseModel):
    """`manifest.json`."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    schema_: Literal["evalkit.bundle/1"] = Field(alias="schema")
    name: str
    created: str
    model_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    manifest_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    model: ModelSpec
    tokenizer: TokenizerSpec
    graphs: dict[str, GraphSpec]
    files: dict[str, FileSpec]
    training: dict[str, Any] | None = None
    parity: dict[str, Parity] = {}


def model_digest(weights_sha256: str, tokenizer_sha256: str, model: ModelSpec) -> str:
    """The model's identity: SHA-256 over weights, tokenizer and architecture; a re-export keeps it."""
    parts = [weights_sha256, tokenizer_sha256, canonical_json(model.model_dump()).decode()]
    return sha256_bytes("\n".join(parts).encode())


def manifest_digest(content: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON of a manifest without its own `manifest_sha256`."""
    return sha256_json({key: value for key, value in content.items() if key != "manifest_sha256"})


@dataclass(frozen=True)
class Bundle:
    """A verified bundle folder. Build it with `load_bundle`, never directly."""

    path: Path
    manifest: Manifest

    @property
    def model_digest(self) -> str:
        """The model's identity, SHA-256 hex."""
        return self.manifest.model_digest

    @property
    def name(self) -> str:
        """What its model is called."""
        return self.manifest.name

    @property
    def max_length(self) -> int:
        """Longest input that the model reads, in tokens."""
        return self.manifest.model.max_length

    @property
    def precision(self) -> str:
        """Of the arithmetic of its `score` graphs."""
        return "fp32"

    @property
    def tokenizer_sha256(self) -> str:
        """SHA-256 of tokenizer.json."""
        return self.manifest.tokenizer.sha256

    @property
    def model(self) -> ModelSpec:
        """The architecture."""
        return self.manifest.model

    def graph_file(self, role: str) -> Path:
        """Path of the graph that plays `role` (score, prefill, decode).

        Raises:
            InputError: the bundle has no such graph.
        """
        spec = self.manifest.graphs.get(role)
        if spec is None:
            have = ", ".join(sorted(self.manifest.graphs)) or "none"
            raise InputError(
                f"{self.path}: the bundle has no graph for the role {role!r} (it has: {have}); export it again"
            )
        return self.path / spec.file

    @property
    def graph_digests(self) -> dict[str, str]:
        """SHA-256 of the graph file of each role."""
        return {role: self.manifest.files[spec.file].sha256 for role, spec in self.manifest.graphs.items()}

    @cached_property
    def tokenizer(self) -> "TextTokenizer":
        """The tokenizer, loaded once."""
        from evalkit.tokenization import TextTokenizer

        spec = self.manifest.tokenizer
        return TextTokenizer.from_file(
            self.path / TOKENIZER,
            prefix_token=spec.prefix_token,
            end_token=spec.end_token,
            chat_template=spec.chat_template,
        )

    @cached_property
    def token_counts(self) -> "npt.NDArray[np.int64] | None":
        """Training frequency of each token id, shape (vocab_size,); None for a converted model.

        Raises:
            InputError: the file isn't what an export writes.
        """
        if TOKEN_COUNTS not in self.manifest.files:
            return None
        import zipfile

        import numpy as np
        import numpy.typing as npt

        file = self.path / TOKEN_COUNTS
        try:
            with np.load(file, allow_pickle=False) as archive:
                counts: npt.NDArray[np.int64] = archive["counts"].astype(np.int64)
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
            raise InputError(
                f"{file}: not an archive with an array `counts`; export the bundle again"
            ) from None
        return counts

    @cached_property
    def word_counts(self) -> dict[str, int] | None:
        """Training frequency of each word; None for a converted model.

        Raises:
            InputError: the file isn't what an export writes.
        """
        if WORD_COUNTS not in self.manifest.files:
            return None
        file = self.path / WORD_COUNTS
        try:
            with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
                return parse_word_counts(stream)
        except (ValueError, EOFError, OSError):
            raise InputError(
                f"{file}: not gzipped lines of WORD<tab>COUNT; export the bundle again"
            ) from None


def parse_word_counts(rows: Iterable[str]) -> dict[str, int]:
    """Frequencies from rows WORD<tab>COUNT.

    Raises:
        ValueError: a row isn't one.
    """
    parts = (row.rstrip("\n").rpartition("\t") for row in rows)
    return {word: int(count) for word, _, count in parts}


def load_bundle(path: Path) -> Bundle:
    """Verify the bundle folder at `path` and return it.

    Raises:
        InputError: missing, incomplete, corrupt or unsafe; the message names the file.
    """
    manifest = read_manifest(path)
    for name, spec in manifest.files.items():
        _check_file(path, name, spec)
    for name in (WEIGHTS, TOKENIZER):
        if name not in manifest.files:
            raise InputError(f"{path / MANIFEST}: files.{name}: is required; export the bundle again")
    if manifest.files[TOKENIZER].sha256 != manifest.tokenizer.sha256:
        raise InputError(
            f"{path / MANIFEST}: tokenizer.sha256 isn't that of {TOKENIZER}; export the bundle again"
        )
    found = model_digest(manifest.files[WEIGHTS].sha256, manifest.tokenizer.sha256, manifest.model)
    if found != manifest.model_digest:
        raise InputError(
            f"{path / MANIFEST}: model_digest doesn't fit weights, tokenizer and model; export the bundle again"
        )
    for role, graph in manifest.graphs.items():
        if graph.file not in manifest.files:
            raise InputError(
                f"{path / MANIFEST}: graphs.{role}.file: {graph.file!r} isn't listed under files"
            )
        if graph.format == "mindir":
            check_operators(path / graph.file)
    return Bundle(path=path, manifest=manifest)


def read_manifest(path: Path) -> Manifest:
    """Read and validate `manifest.json` of the bundle folder `path`, without checking the files it lists."""
    file = path / MANIFEST
    if not path.is_dir():
        raise InputError(f"{path}: no such bundle folder; make one with `trainer export CKPT --out {path}`")
    if not file.is_file():
        raise InputError(f"{file}: no such file; the folder isn't a bundle")
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise InputError(f"{file}: larger than {_MAX_MANIFEST_BYTES} bytes; the folder isn't a bundle")
    try:
        content = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}: broken JSON: {error.msg}; export the bundle again"
        ) from None
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"]) or "the top level"
        raise InputError(f"{file}: {field}: {problem['msg']}; export the bundle again") from None
    if manifest_digest(content) != manifest.manifest_sha256:
        raise InputError(
            f"{file}: manifest_sha256 doesn't fit the content; the bundle is corrupt, export it again"
        )
    return manifest


def _check_file(folder: Path, name: str, spec: FileSpec) -> None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or not name:
        raise InputError(
            f"{folder / MANIFEST}: files: {name!r} leaves the bundle folder; don't trust this bundle"
        )
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{file}: a link that leaves the bundle folder; don't trust this bundle")
    if not file.is_file():
        raise InputError(f"{file}: missing, though the manifest lists it; copy or export the bundle again")
    size = file.stat().st_size
    if size != spec.bytes:
        raise InputError(
            f"{file}: {size} bytes, the manifest says {spec.bytes}; the bundle is corrupt, export it again"
        )
    if sha256_file(file) != spec.sha256:
        raise InputError(f"{file}: SHA-256 differs from the manifest; the bundle is corrupt, export it again")
