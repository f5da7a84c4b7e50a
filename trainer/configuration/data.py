"""`data`: which files, how they are cleaned, and how they become rows."""

from typing import Any, Literal

from pydantic import Field, field_validator

from trainer.configuration.strict import Strict

# fix mends the text, drop leaves the record out, count only counts, skip doesn't look.
TextAction = Literal["fix", "drop", "count", "skip"]
DuplicateAction = Literal["drop", "count", "skip"]


class CleaningConfig(Strict):
    """What cleaning does about each fault; `clean: default` is what stands here.

    Attributes:
        mojibake: UTF-8 that was read as Latin-1, Windows-1252 or a relative of theirs.
        invalid_unicode: lone surrogates, and U+FFFD, which stands for text that was lost. Fixing takes them out.
        control_characters: category Cc but tab, line feed and carriage return. Fixing takes them out; vertical tab,
            form feed and U+0085 become line feeds.
        exact_duplicates: records that say the same, character for character, as an earlier one.
        near_duplicates: records whose sets of five-character pieces have an estimated Jaccard similarity of
            `near_duplicate_threshold` or more with an earlier record that is none itself.
    """

    mojibake: TextAction = "fix"
    invalid_unicode: TextAction = "fix"
    control_characters: TextAction = "fix"
    exact_duplicates: DuplicateAction = "drop"
    near_duplicates: DuplicateAction = "count"
    near_duplicate_threshold: float = Field(default=0.8, ge=0.5, le=1)


class DataConfig(Strict):
    """Training and validation files (JSON Lines or plain text) and how they become rows.

    Attributes:
        loss_on: in conversations, what is learnt.
        packing: several documents a row; none sees another. Otherwise one document (or part of one) a row.
        pad_token_id: what stands in positions without text. A genuine token with this id is learnt like any other.
        remainder: what is left of a document longer than a row after its full rows: keep pads or packs it, drop
            leaves it out. A document that is shorter than a row is always kept.
    """

    train: list[str] = Field(min_length=1)
    validation: list[str] = Field(default=[])
    loss_on: Literal["assistant", "all"] = "assistant"
    # MindRecord pages end at 256 MiB, and a row has to fit into one.
    sequence_length: int = Field(gt=1, le=1 << 20)
    packing: bool = True
    pad_token_id: int = Field(default=0, ge=0)
    remainder: Literal["keep", "drop"] = "keep"
    clean: CleaningConfig = CleaningConfig()

    @field_validator("clean", mode="before")
    @classmethod
    def _default_rules(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value != "default":
                raise ValueError("default, or a mapping of cleaning rules, is needed")
            return {}
        return value
