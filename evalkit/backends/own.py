"""A model behind a backend of the user, found by `module:attr` or entry point; see docs/backends.md."""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.backends.base import DECLARED, Backend, IntArray, RowStats
from evalkit.errors import IncompleteError, InputError
from evalkit.scenario.model_schema import OwnBackendRef
from evalkit.tokenization import TextTokenizer

ENTRY_POINTS = "evalkit.backends"

_ATTRIBUTES: dict[str, type] = {
    "name": str,
    "model_digest": str,
    "precision": str,
    "max_length": int,
    "vocab_size": int,
}


class CheckedBackend:
    """A user's backend whose answers are looked at before they are used."""

    def __init__(self, backend: Backend, reference: str) -> None:
        self.name, self.model_digest, self.precision = backend.name, backend.model_digest, backend.precision
        self.max_length, self.vocab_size = backend.max_length, backend.vocab_size
        self.batch_rows = getattr(backend, "batch_rows", 1)
        self._backend, self._reference = backend, reference

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`.

        Raises:
            InputError: it raised something, or its answer has another shape.
        """
        try:
            stats = self._backend.score(token_ids, targets, positions, segments)
        except (InputError, IncompleteError):
            raise
        except Exception as error:  # a user's code may raise anything
            raise InputError(
                f"{self._reference}: score failed with {type(error).__name__}: {error}"
            ) from None
        if not isinstance(stats, RowStats):
            raise InputError(f"{self._reference}: score gave {type(stats).__name__}; a RowStats is needed")
        arrays = {item.name: getattr(stats, item.name) for item in fields(stats) if item.name != "failed"}
        if arrays["logprob"] is None:
            raise InputError(
                f"{self._reference}: score gave no logprob; only the other statistics may be None"
            )
        for name, values in arrays.items():
            if values is not None and np.shape(values) != token_ids.shape:
                raise InputError(
                    f"{self._reference}: score gave {name} in the shape {np.shape(values)}; {token_ids.shape} is needed"
                )
        return RowStats(
            np.asarray(stats.logprob, dtype=np.float32),
            None if stats.entropy is None else np.asarray(stats.entropy, dtype=np.float32),
            None if stats.margin is None else np.asarray(stats.margin, dtype=np.float32),
            None if stats.rank is None else np.asarray(stats.rank, dtype=np.int32),
            None if stats.top_id is None else np.asarray(stats.top_id, dtype=np.int32),
            stats.failed,
        )


@dataclass(frozen=True)
class OwnModel:
    """A model behind a backend of the user; see docs/backends.md.

    Attributes:
        ref: as the scenario says it.
        tokenizer, tokenizer_sha256: of the model.
        modules: folder of the scenario's modules, or None.
    """

    ref: OwnBackendRef
    tokenizer: TextTokenizer
    tokenizer_sha256: str
    modules: Path | None

    @property
    def name(self) -> str:
        """The reference."""
        return self.ref.backend

    @property
    def model_digest(self) -> str:
        """What the backend declares."""
        return DECLARED + self.backend.model_digest

    @property
    def precision(self) -> str:
        """What the backend declares."""
        return self.backend.precision

    @property
    def max_length(self) -> int:
        """What the backend declares."""
        return self.backend.max_length

    @property
    def backend(self) -> Backend:
        """The user's object, made when it is first needed."""
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[Backend, str]:
        from evalkit.metrics.references import load_reference

        loaded = load_reference(self.ref.backend, self.modules, group=ENTRY_POINTS)
        try:
            backend = loaded.target() if callable(loaded.target) else loaded.target
        except InputError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise InputError(f"{self.ref.backend}: failed with {type(error).__name__}: {error}") from None
        _check_attributes(backend, self.ref.backend)
        return CheckedBackend(backend, self.ref.backend), loaded.sha256

    def describe(self) -> dict[str, Any]:
        """Its part of plan.json."""
        return {
            "name": self.name,
            "model_digest": self.model_digest,
            "identity": "declared",
            "identity_note": "declared by the user's backend, not verified",
            "tokenizer_sha256": self.tokenizer_sha256,
            "prefix_token": self.tokenizer.prefix_token,
            "max_length": self.max_length,
            "backend": {"name": self.backend.name, "precision": self.precision, "sha256": self._loaded[1]},
        }


def _check_attributes(backend: Any, reference: str) -> None:
    for attribute, kind in _ATTRIBUTES.items():
        value: Any = getattr(backend, attribute, None)
        usable = isinstance(value, kind) and not isinstance(value, bool)
        if not usable or not value or (kind is int and value < 0):
            raise InputError(
                f"{reference}: {attribute}: {value!r:.60} isn't possible ({kind.__name__} is needed); see docs/backends.md"
            )
    if not callable(getattr(backend, "score", None)):
        raise InputError(f"{reference}: score: a method is needed; see docs/backends.md")
