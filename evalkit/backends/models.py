"""What a run measures: a bundle, a served model, or a model behind code of the user; and how each is opened.

Only a bundle's identity is verified. Whoever serves a model, or writes a backend, says what it is: such a digest begins
with `declared:` wherever it stands.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.backends.base import DECLARED, Backend
from evalkit.backends.choice import BackendName, open_backend
from evalkit.backends.own import OwnModel
from evalkit.bundle import Bundle
from evalkit.canonical import sha256_file, sha256_text
from evalkit.errors import InputError
from evalkit.scenario.model_schema import EndpointRef
from evalkit.tokenization import TextTokenizer

if TYPE_CHECKING:
    from evalkit.backends.endpoint_texts import EndpointTexts

# A served model's arithmetic is known to its operator alone.
UNKNOWN_PRECISION = "declared"


@dataclass(frozen=True)
class ServedModel:
    """A model behind an endpoint.

    Attributes:
        ref: as the scenario says it.
        tokenizer: of the served model; None where texts are sent as text.
        tokenizer_sha256: of its file; without one, of the declared identity, so that numbers by token are comparable
            only with those of the same model.
    """

    ref: EndpointRef
    tokenizer: TextTokenizer | None
    tokenizer_sha256: str

    @property
    def name(self) -> str:
        """What the endpoint calls it."""
        return self.ref.model

    @property
    def model_digest(self) -> str:
        """What the operator declares it to be."""
        return DECLARED + self.ref.declare

    @property
    def precision(self) -> str:
        """Of its log-probabilities."""
        return UNKNOWN_PRECISION

    @property
    def max_length(self) -> int | None:
        """Longest input; None where the server decides."""
        return self.ref.max_length

    def describe(self) -> dict[str, Any]:
        """Its part of plan.json."""
        return {
            "endpoint": self.ref.url,
            "name": self.name,
            "model_digest": self.model_digest,
            "identity": "declared",
            "identity_note": "declared by the operator of the endpoint, not verified",
            "tokenizer_sha256": None if self.tokenizer is None else self.tokenizer_sha256,
            "prefix_token": None if self.tokenizer is None else self.tokenizer.prefix_token,
            "prompts": "texts" if self.tokenizer is None else "token ids",
            "max_length": self.max_length,
            "backend": {"name": "endpoint", "precision": self.precision},
        }

    def open(self) -> Backend:
        """Connect and try it with a short prompt; for a model with a tokenizer.

        Raises:
            InputError: the endpoint doesn't fit.
            IncompleteError: it doesn't answer.
        """
        from evalkit.backends.endpoint import EndpointBackend
        from evalkit.backends.endpoint_client import EndpointClient

        assert self.tokenizer is not None and self.max_length is not None
        return EndpointBackend(
            EndpointClient(self.ref),
            self.tokenizer,
            model_digest=self.model_digest,
            max_length=self.max_length,
        )

    def open_texts(self) -> "EndpointTexts":
        """The same for a model without a tokenizer."""
        from evalkit.backends.endpoint_client import EndpointClient
        from evalkit.backends.endpoint_texts import EndpointTexts

        return EndpointTexts(EndpointClient(self.ref))


MeasuredModel = Bundle | ServedModel | OwnModel


def open_model(name: BackendName, model: MeasuredModel) -> Backend:
    """The backend that scores token ids with `model`.

    Args:
        name: which of a bundle's graphs is run.
        model: a served one needs its tokenizer.

    Raises:
        InputError: it can't be opened.
        IncompleteError: an endpoint doesn't answer.
    """
    if isinstance(model, Bundle):
        return open_backend(name, model)
    return model.open() if isinstance(model, ServedModel) else model.backend


def load_tokenizer(file: Path, prefix_token: str | None) -> tuple[TextTokenizer, str]:
    """The tokenizer of a model that isn't a bundle, and the SHA-256 of its file.

    Raises:
        InputError: the file isn't a tokenizer, or doesn't know the prefix token.
    """
    tokenizer = TextTokenizer.from_file(file, prefix_token=None, end_token=None, chat_template=None)
    if prefix_token is not None:
        tokenizer.prefix_token = tokenizer.token_id(prefix_token)
        if tokenizer.prefix_token is None:
            raise InputError(
                f"prefix_token {prefix_token!r} isn't a token of {file}; write it as the tokenizer does"
            )
    return tokenizer, sha256_file(file)


def identity_sha256(declare: str) -> str:
    """Stands for the tokenizer of a served model whose tokenizer isn't known."""
    return sha256_text(DECLARED + declare)
