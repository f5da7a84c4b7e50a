"""Who speaks in a dialogue: a script (the default), a rule-driven user, a recorded one, or a served model."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)

from evalkit.scenario.additions_schema import Strict
from evalkit.scenario.model_schema import EndpointRef

# `{fact}` in a text stands for the value of that fact.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

NonEmpty = Annotated[str, Field(min_length=1, pattern=r"\S")]
FactName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FactValue = StrictStr | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[
    list[NonEmpty], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class Answers(Strict):
    """What the user says where a reply asks for it: `asks` is a regular expression, searched in the reply."""

    asks: NonEmpty
    say: NonEmpty


class ChangeOfMind(Strict):
    """From turn `turn` (counted from 1, not the first) on `fact` is one of `to`, drawn for each trial; `say` tells it."""

    turn: int = Field(ge=2)
    fact: FactName
    to: list[FactValue] = Field(min_length=1)
    say: NonEmpty


class Digressions(Strict):
    """In `share` of the turns after the first the user says one of `texts` as well, drawn for each trial."""

    texts: Texts
    share: float = Field(default=0.3, gt=0, le=1)


class RuleUser(Strict):
    """A user with a state: what was asked, what was got wrong, how often nothing helped.

    Before the text of each turn the user answers what the reply before asked for, and corrects what it got wrong of the
    facts in `corrects` (by the dialogue's ledger). The state machine: going on → (a reply fails expectations) annoyed
    → (`gives_up_after` such replies in a row) gone; a good reply leads back to going on.
    """

    kind: Literal["rules"]
    answers: list[Answers] = Field(default=[])
    corrects: list[FactName] = Field(default=[])
    correction: NonEmpty | None = None
    changes_mind: list[ChangeOfMind] = Field(default=[])
    digresses: Digressions | None = None
    gives_up_after: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _together(self) -> "RuleUser":
        if bool(self.corrects) != (self.correction is not None):
            raise ValueError("corrects and correction go together")
        unknown = sorted(set(PLACEHOLDER.findall(self.correction or "")) - {"fact", "value"})
        if unknown:
            raise ValueError(
                f"correction: unknown {{{unknown[0]}}}; only {{fact}} and {{value}} are filled in"
            )
        return self


class RecordedUser(Strict):
    """What a user said in a recorded session, word for word, in place of the turns' texts.

    `file` holds JSON lines with `session` and `user_text`, in order; its path is relative to the dialogue file.
    """

    kind: Literal["recorded"]
    file: NonEmpty
    session: NonEmpty


class ModelUser(Strict):
    """A served model plays the user; the turns' texts say what it is after, the first is said as written.

    Its replies aren't ours to vouch for: a blocking rule takes its dialogues only with `may_block`.
    """

    kind: Literal["model"]
    endpoint: NonEmpty
    model: NonEmpty
    declare: NonEmpty
    instructions: NonEmpty = "Stay in your role. Say one or two short sentences, nothing else."
    api_key_env: str | None = None
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=80, ge=1, le=1000)
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    may_block: bool = False

    @property
    def ref(self) -> EndpointRef:
        """The endpoint, with everything that is checked of one."""
        return EndpointRef(
            endpoint=self.endpoint,
            model=self.model,
            declare=self.declare,
            api_key_env=self.api_key_env,
            timeout_s=self.timeout_s,
        )

    @model_validator(mode="after")
    def _sound_endpoint(self) -> "ModelUser":
        assert self.ref
        return self


_KINDS = {"rules": "RuleUser", "recorded": "RecordedUser", "model": "ModelUser"}


def _kind(value: Any) -> str | None:
    if isinstance(value, BaseModel):
        return type(value).__name__
    return _KINDS.get(value.get("kind", "")) if isinstance(value, dict) else None


User = Annotated[
    Annotated[RuleUser, Tag("RuleUser")]
    | Annotated[RecordedUser, Tag("RecordedUser")]
    | Annotated[ModelUser, Tag("ModelUser")],
    Discriminator(
        _kind,
        custom_error_type="user_kind",
        custom_error_message="a mapping with kind: rules, recorded or model is needed",
    ),
]
