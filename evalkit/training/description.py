"""How an evaluation was made, as plain values: what has to be equal before two scores are compared.

A run folder holds all of it already; for an evaluation by other code, `describe` collects it from the live objects.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from evalkit.backends.base import Backend
from evalkit.canonical import sha256_file, sha256_json, sha256_text
from evalkit.errors import InputError
from evalkit.files import refuse_named_pipe, write_json_atomic
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import Reader
from evalkit.runs.plan import context_from_plan, read_plan
from evalkit.scoring.engine import score_sequences
from evalkit.scoring.windows import plan_windows
from evalkit.training.evaluation import Validation

SCHEMA = "evalkit.evaluation/1"


@dataclass(frozen=True)
class EvaluationDescription:
    """One evaluation. None: not known, which is no promise that it's right.

    Attributes:
        source: file or name, for people.
        seed, shuffled: of the order or choice of the samples.
        precision: of the arithmetic.
        signature: window, classes and version, as beside a score.
        tokenizer_sha256, template_sha256: digests of tokenizer file and chat template ("none": without a template).
        padding_side: left, right or none.
        weights_sha256: of the measured parameters.
        training_parts: cells that were in training mode and behave otherwise there (dropout, batch norm).
        samples, samples_sha256: how many, and the digest of their sorted ids.
        repeated, missing: ids counted more than once, or never though they were planned.
        batch_difference: largest difference of a log-probability (nats) between two batch sizes.
        stale: objects whose code in memory isn't that of their file.
        versions: of the packages that matter.
    """

    source: str
    seed: int | None = None
    shuffled: bool | None = None
    precision: str | None = None
    signature: str | None = None
    tokenizer_sha256: str | None = None
    template_sha256: str | None = None
    padding_side: str | None = None
    weights_sha256: str | None = None
    training_parts: tuple[str, ...] | None = None
    samples: int | None = None
    samples_sha256: str | None = None
    repeated: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = None
    batch_difference: float | None = None
    stale: tuple[str, ...] | None = None
    versions: dict[str, str] | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_json_atomic(path, {"schema": SCHEMA, **asdict(self)})


_ADAPTER = TypeAdapter(EvaluationDescription)


def read_description(path: Path | str) -> EvaluationDescription:
    """Read a run folder (its candidate), or a file that `EvaluationDescription.write` made.

    Raises:
        InputError: neither of the two, or broken.
    """
    path = Path(path)
    if path.is_dir():
        return _of_run(path)
    refuse_named_pipe(path)
    try:
        stored = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path}: can't be read ({error.strerror}); give a run folder or a description"
        ) from None
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: broken JSON: {error.msg}; describe the evaluation again"
        ) from None
    if not isinstance(stored, dict) or stored.pop("schema", None) != SCHEMA:
        raise InputError(f"{path}: schema: {SCHEMA!r} is needed; give a run folder or a description")
    unknown = sorted(set(stored) - {item.name for item in fields(EvaluationDescription)})
    if unknown:
        raise InputError(f"{path}: {unknown[0]}: unknown key; describe the evaluation again")
    try:
        return _ADAPTER.validate_json(orjson.dumps({**stored, "source": str(path)}), strict=True)
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"]))
        raise InputError(f"{path}: {where}: {found['msg']}; describe the evaluation again") from None


def describe(
    name: str,
    *,
    validation: Validation | None = None,
    backend: Backend | None = None,
    network: Any = None,
    counted: Iterable[str] | None = None,
    template: str | None = None,
    tokenizer_file: Path | None = None,
    padding_side: str | None = None,
    seed: int | None = None,
    shuffled: bool | None = None,
    code: Sequence[Callable[..., Any] | type] = (),
) -> EvaluationDescription:
    """Collect what can be seen of an evaluation in this process; nothing is changed by it.

    Args:
        name: for people.
        validation, backend: evalkit's own; with both, one block of rows is scored at two batch sizes.
        network: its cells' modes are looked at.
        counted: the sample id behind each result that entered the score, over all ranks, repeats included.
        template: the chat template's text.
        tokenizer_file: where no validation is given.
        padding_side, seed, shuffled: what the evaluating code uses, as far as it's known.
        code: functions and classes that compute the score; those older than their file are named.
    """
    ids = None if counted is None else Counter(counted)
    planned = None if validation is None else {item.sample_id for item in validation.items}
    tokenizer = signature = None
    if validation is not None:
        tokenizer, signature = validation.tokenizer_sha256, validation.context.signatures["text"]
    if tokenizer_file is not None:
        tokenizer = sha256_file(tokenizer_file)
    return EvaluationDescription(
        source=name,
        seed=seed,
        shuffled=shuffled,
        precision=None if backend is None else backend.precision,
        signature=signature,
        tokenizer_sha256=tokenizer,
        template_sha256="none" if template is None else sha256_text(template),
        padding_side=padding_side,
        weights_sha256=None if backend is None else backend.model_digest,
        training_parts=None if network is None else _training_parts(network),
        samples=None if ids is None else len(ids),
        samples_sha256=None if ids is None else sha256_json(sorted(ids)),
        repeated=None if ids is None else tuple(sorted(key for key, count in ids.items() if count > 1)),
        missing=None if ids is None or planned is None else tuple(sorted(planned - set(ids))),
        batch_difference=None
        if backend is None or validation is None
        else batch_difference(validation, backend),
        stale=stale_code(code) if code else None,
        versions={package: version(package) for package in ("evalkit", "mindspore", "numpy", "tokenizers")},
    )


def batch_difference(validation: Validation, backend: Backend, texts: int = 16) -> float | None:
    """Largest difference, in nats, of a token's log-probability between texts scored together and one by one.

    None where the first `texts` texts hold no token that can be scored.
    """
    tokenizer, window = validation.tokenizer, validation.window
    has_prefix = tokenizer.prefix_token is not None
    ids = [tokenizer.encode(item.text).ids for item in validation.items[:texts] if item.text.strip()]
    planned = [(row, list(plan_windows(len(row), window, has_prefix=has_prefix))) for row in ids]
    planned = [(row, windows) for row, windows in planned if windows]

    def logprobs(part: Sequence[tuple[Any, Any]]) -> list[Any]:
        rows, windows = [row for row, _ in part], [found for _, found in part]
        prefix = tokenizer.prefix_token
        done = score_sequences(rows, windows, backend, prefix_token=prefix, longest_row=window.length)
        found = dict(pair for batch in done for pair in batch)
        return [found[index].logprob for index in range(len(part))]

    together = logprobs(planned)
    alone = [logprobs([pair])[0] for pair in planned]
    differences = [np.abs(a - b).max() for a, b in zip(together, alone, strict=True) if len(a)]
    return float(max(differences)) if differences else None


def stale_code(objects: Sequence[Callable[..., Any] | type]) -> tuple[str, ...]:
    """Names of functions and classes whose code in memory isn't what their file says now.

    A notebook keeps what it imported or defined when the file is edited later.
    """
    stale = []
    for item in objects:
        target = inspect.unwrap(item) if inspect.isfunction(item) else item
        functions = [target] if inspect.isfunction(target) else _methods(target)
        name = f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', target)}"
        if any(_differs_from_file(function) for function in functions):
            stale.append(name)
    return tuple(stale)


def _methods(owner: Any) -> list[Any]:
    return (
        [item for item in vars(owner).values() if inspect.isfunction(item)] if inspect.isclass(owner) else []
    )


def _differs_from_file(function: Any) -> bool:
    file = function.__code__.co_filename
    try:
        tree = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False  # typed at a prompt, or gone: nothing to compare with
    found = _code_by_name(tree, function.__code__.co_qualname)
    return (
        found is None
        or found.co_code != function.__code__.co_code
        or found.co_consts != function.__code__.co_consts
    )


def _code_by_name(code: Any, qualname: str) -> Any:
    for constant in code.co_consts:
        if inspect.iscode(constant):
            if constant.co_qualname == qualname:
                return constant
            inner = _code_by_name(constant, qualname)
            if inner is not None:
                return inner
    return None


def _training_parts(network: Any) -> tuple[str, ...]:
    kinds = ("Dropout", "BatchNorm")
    return tuple(
        f"{name or 'network'} ({type(cell).__name__})"
        for name, cell in network.cells_and_names()
        if cell.training and any(kind in type(cell).__name__ for kind in kinds)
    )


def _of_run(path: Path) -> EvaluationDescription:
    folder = RunFolder(path)
    plan = read_plan(folder)
    evidence = read_evidence(folder, "candidate")
    # Texts by their id alone, as `describe` has them; a decision or a turn may share a text's id.
    ids = Counter(
        sample.sample_id if sample.kind == "text" else f"{sample.kind}/{sample.sample_id}"
        for sample in evidence.samples
    )
    where = str(folder.plan)
    settings = Reader(plan, where)
    model = Reader(settings.mapping("candidate"), f"{where}: candidate")
    # A served model has a backend of its own; what the plan says is of bundles.
    own = plan["candidate"].get("backend")
    backend = (
        Reader(settings.mapping("backend"), f"{where}: backend")
        if own is None
        else Reader(own, f"{where}: candidate.backend")
    )
    environment = Reader(settings.mapping("environment"), f"{where}: environment")
    versions = environment.mapping("versions")
    return EvaluationDescription(
        source=str(path),
        seed=settings.integer("seed"),
        shuffled=False,
        precision=backend.text("precision"),
        signature=context_from_plan(plan).signatures.get("text"),
        tokenizer_sha256=model.text_or_none("tokenizer_sha256"),
        template_sha256=None,
        padding_side="none",
        weights_sha256=model.text("model_digest"),
        training_parts=(),
        samples=len(ids),
        samples_sha256=sha256_json(sorted(ids)),
        repeated=tuple(sorted(key for key, count in ids.items() if count > 1)),
        missing=(),
        versions={str(name): str(found) for name, found in versions.items()},
    )
