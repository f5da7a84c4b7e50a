"""docs/training.md names every key of the configuration, with its default."""

import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from trainer.config import TrainConfig

PAGE = Path(__file__).resolve().parents[2] / "docs/training.md"


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The block that a field is (or may be); one of several alternatives (`recompute`) is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return block_of(kinds[0]) if len(kinds) == 1 else None
    return None


def default_of(field) -> str:
    """As the table writes it."""
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, str):
        return f"`{value}`"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Dotted key to default, blocks within a block included."""
    found = {}
    for name, field in model.model_fields.items():
        found[f"{prefix}{name}"] = default_of(field)
        inner = block_of(field.annotation)
        if inner is not None and prefix == "" and model is not TrainConfig:
            found |= keys_of(inner, f"{name}.")
    return found


def tables() -> dict[str, dict[str, tuple[str, str, str]]]:
    """Block to key to (type, default, meaning), from the page's "Every key"."""
    text = PAGE.read_text().split("### Every key\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, dict[str, tuple[str, str, str]]] = {}
    block = ""
    for line in text.splitlines():
        if heading := re.match(r"`(\w+)`[^|]*:$", line):
            block = heading[1]
        if row := re.match(r"\| `([\w.]+)` \| (.*) \| (.*) \| (.*) \|$", line):
            assert row[1] not in found.setdefault(block, {}), f"{block}.{row[1]} stands twice"
            found[block][row[1]] = (row[2].strip(), row[3].strip(), row[4].strip())
    return found


BLOCKS = {
    "": TrainConfig,
    **{
        name: inner
        for name, field in TrainConfig.model_fields.items()
        if (inner := block_of(field.annotation)) is not None
    },
}


def test_there_is_a_table_for_each_block_and_no_other():
    assert set(tables()) == set(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_s_table_names_every_key_and_its_default(block):
    written = {key: default for key, (_, default, _) in tables()[block].items()}
    assert written == keys_of(BLOCKS[block])


def test_every_key_has_a_kind_and_a_meaning():
    for block, rows in tables().items():
        assert all(kind and meaning for kind, _, meaning in rows.values()), block
