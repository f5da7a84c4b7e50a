"""JSON Schemas of the files that people write, for editors that complete and check while typing."""

from typing import Any, Literal

from pydantic import TypeAdapter

from evalkit.scenario.dialogue import Dialogue, DialogueFile

SchemaKind = Literal["dialogue"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def editor_schema(kind: SchemaKind) -> dict[str, Any]:
    """The JSON Schema of a kind of file. What only a whole file shows (facts, lines) is the affair of `evalkit validate`."""
    assert kind == "dialogue"
    schema = TypeAdapter[Any](Dialogue | DialogueFile).json_schema()
    _close(schema)
    return {"$schema": _DIALECT, "title": "evalkit dialogue file", **schema}


def _close(part: Any) -> None:
    """Where keys have a pattern, keys of another form are mistakes."""
    if isinstance(part, dict):
        if "patternProperties" in part:
            part["additionalProperties"] = False
        for value in part.values():
            _close(value)
    elif isinstance(part, list):
        for value in part:
            _close(value)
