"""The parts of the scenario file that say where a model is: `model` and `baseline`."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, model_validator

from evalkit.scenario.additions_schema import Reference, Strict

# A special token as the tokenizer writes it, e.g. <s>.
SpecialToken = Annotated[str, Field(min_length=1)]


class BundleRef(Strict):
    """A model that evalkit runs itself."""

    bundle: str


class AliasRef(Strict):
    """The model that an alias of the registry holds when the run begins; for a baseline."""

    alias: str = Field(min_length=1)


class EndpointRef(Strict):
    """A served model behind an OpenAI-compatible endpoint; its identity is what the operator declares.

    With `tokenizer` and `max_length` prompts are token ids, and windows and token classes are those of offline
    scoring. Without them each text is sent whole, as text. See docs/backends.md.
    """

    endpoint: str
    model: str = Field(min_length=1)
    declare: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")
    tokenizer: str | None = None
    prefix_token: SpecialToken | None = None
    max_length: int | None = Field(default=None, gt=1)
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    concurrency: int = Field(default=8, ge=1, le=256)
    timeout_s: float = Field(default=120.0, gt=0, le=3600)

    @property
    def url(self) -> str:
        """The endpoint without a slash at its end."""
        return self.endpoint.rstrip("/")

    @model_validator(mode="after")
    def _plain_url(self) -> "EndpointRef":
        # A check of the whole, since messages show the value of a single field. The URL stands in plan.json and in
        # reports, so nothing secret may be part of it.
        try:
            parts = urlsplit(self.endpoint)
            _ = parts.port  # reading it checks it
        except ValueError:
            raise ValueError(
                "endpoint: is no URL; http://HOST:PORT/v1 is needed, the port at most 65535, an IPv6 host in [ ]"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("endpoint: http://HOST/v1 or https://HOST/v1 is needed")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "endpoint: no user, password or query may stand in the URL; name the variable that holds the key "
                "with api_key_env"
            )
        return self

    @model_validator(mode="after")
    def _tokenizer_is_whole(self) -> "EndpointRef":
        if (self.tokenizer is None) != (self.max_length is None):
            raise ValueError("tokenizer and max_length go together")
        if self.prefix_token is not None and self.tokenizer is None:
            raise ValueError("prefix_token needs tokenizer")
        return self


class OwnBackendRef(Strict):
    """A model behind code of the user: `module:attr`, or an entry point of the group `evalkit.backends`."""

    backend: Reference
    tokenizer: str
    prefix_token: SpecialToken | None = None


_KINDS = {"endpoint": "EndpointRef", "backend": "OwnBackendRef"}


def _model_kind(value: Any) -> str:
    # Decided by the key, so that a wrong value is reported by the branch that was meant.
    if isinstance(value, dict):
        return next((kind for key, kind in _KINDS.items() if key in value), "BundleRef")
    return type(value).__name__ if isinstance(value, EndpointRef | OwnBackendRef) else "BundleRef"


def _baseline_kind(value: Any) -> str:
    by_alias = isinstance(value, AliasRef) or (isinstance(value, dict) and "alias" in value)
    return "AliasRef" if by_alias else _model_kind(value)


ModelRef = Annotated[
    Annotated[BundleRef, Tag("BundleRef")]
    | Annotated[EndpointRef, Tag("EndpointRef")]
    | Annotated[OwnBackendRef, Tag("OwnBackendRef")],
    Discriminator(_model_kind),
]
BaselineRef = Annotated[
    Annotated[BundleRef, Tag("BundleRef")]
    | Annotated[EndpointRef, Tag("EndpointRef")]
    | Annotated[OwnBackendRef, Tag("OwnBackendRef")]
    | Annotated[AliasRef, Tag("AliasRef")],
    Discriminator(_baseline_kind),
]
