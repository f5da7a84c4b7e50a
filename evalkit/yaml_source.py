"""YAML files read strictly: duplicate keys, unknown keys and wrong types are errors with line numbers."""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, SequenceNode

from evalkit.errors import InputError, as_written
from evalkit.files import read_text

ModelT = TypeVar("ModelT", bound=BaseModel)
FieldPath = tuple[str | int, ...]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's plain scalars, which refuses aliases (they can grow without bound)."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose one node, as the base class does, but never through an alias."""
        if self.check_event(AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, "aliases (*name) aren't supported; write the value out", mark)
        return super().compose_node(parent, index)


# Plain scalars as in YAML 1.2: `0123` and `12:30` are texts, not octal and base-60 numbers; `no` and `on` are no booleans.
_SCALARS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
)
_StrictLoader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _SCALARS:
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))


def yaml_value(text: str) -> Any:
    """One value, read as in a file of ours: 1e-3 is a number, 010 and `no` are texts.

    Raises:
        ValueError: not YAML; says why in a few words.
    """
    loader = _StrictLoader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(getattr(error, "problem", None) or "broken") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    finally:
        loader.dispose()


class YamlSource:
    """A parsed YAML file that still knows on which line each field stands."""

    def __init__(self, path: Path) -> None:
        """Read and parse `path`.

        Raises:
            InputError: missing, binary, broken YAML, duplicate key, or a top level that isn't a mapping.
        """
        self.path = path
        text = read_text(path)
        if "\0" in text:
            raise InputError(f"{path}: a binary file, YAML text is needed")
        loader = _StrictLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise InputError(f"{path}:1: the file is empty; a mapping of keys is needed")
            if not isinstance(node, MappingNode):
                raise InputError(
                    f"{path}:{node.start_mark.line + 1}: a mapping of keys is needed at the top level"
                )
            self._lines: dict[FieldPath, int] = {}
            self._index(node, ())
            self.value: dict[str, Any] = loader.construct_document(node)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark else 1
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise InputError(f"{path}:{line}: broken YAML: {problem}") from None
        except RecursionError:
            raise InputError(f"{path}:1: broken YAML: nested too deeply") from None
        except ValueError as error:
            raise InputError(f"{path}: broken YAML: {error}") from None
        finally:
            loader.dispose()

    def line(self, field: FieldPath) -> int:
        """Line of the deepest known ancestor of `field`, counted from 1."""
        while field and field not in self._lines:
            field = field[:-1]
        return self._lines.get(field, 1)

    def error(self, field: FieldPath, message: str) -> InputError:
        """An InputError that names file, line and field path."""
        name = ".".join(str(part) for part in field)
        where = f"{self.path}:{self.line(field)}: "
        return InputError(f"{where}{name}: {message}" if name else f"{where}{message}")

    def parse(self, model: type[ModelT]) -> ModelT:
        """Validate the content as `model`.

        Raises:
            InputError: the first problem, with its line and field path.
        """
        try:
            return model.model_validate(self.value)
        except ValidationError as error:
            raise self._first_problem(error, model) from None

    def _first_problem(self, error: ValidationError, model: type[BaseModel]) -> InputError:
        problems = error.errors(include_url=False)
        # Of several alternatives of a union the deepest path is the one the user meant.
        problem = max(problems, key=lambda item: (item["type"] == "extra_forbidden", len(item["loc"])))
        field = tuple(part for part in problem["loc"] if self._names_a_field(part))
        if problem["type"] == "extra_forbidden":
            return self.error(field, "unknown key; remove it or correct its name")
        if problem["type"] == "missing":
            return self.error(field, "is required")
        message = problem["msg"].removeprefix("Value error, ")
        given = problem.get("input")
        shown = "" if isinstance(given, dict | list) else f" (got {as_written(given)})"
        return self.error(field, f"{message}{shown}")

    def _names_a_field(self, part: str | int) -> bool:
        return isinstance(part, int) or not (
            part[:1].isupper() or "[" in part or part in {"str", "int", "float", "bool"}
        )

    def _index(self, node: Node, field: FieldPath) -> None:
        self._lines.setdefault(field, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            seen: set[str] = set()
            for key_node, value_node in node.value:
                key = str(key_node.value)
                line = key_node.start_mark.line + 1
                if key in seen:
                    name = ".".join(str(part) for part in (*field, key))
                    raise InputError(f"{self.path}:{line}: {name}: key given twice; keep one of them")
                seen.add(key)
                self._lines[(*field, key)] = line
                self._index(value_node, (*field, key))
        elif isinstance(node, SequenceNode):
            for position, item in enumerate(node.value):
                self._lines[(*field, position)] = item.start_mark.line + 1
                self._index(item, (*field, position))


def load_yaml(path: Path, model: type[ModelT]) -> ModelT:
    """Read `path` and validate it as `model`; every problem is an InputError with its line."""
    return YamlSource(path).parse(model)
