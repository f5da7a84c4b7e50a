"""The fields of a rank table, read one by one: what is missing or of the wrong type becomes a finding."""

import re
from dataclasses import dataclass, field
from typing import Any

from trainer.diagnosis.rulebook import make_finding, rule_texts
from trainer.findings import Evidence, Finding, Value

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
_LONGEST_SHOWN = 60


@dataclass
class Problems:
    """Collects findings in the order in which they are met."""

    findings: list[Finding] = field(default_factory=list)

    def add(self, rule: str, where: str, value: Value = None, **values: Value) -> None:
        """A finding of a rule at a field path."""
        evidence = [Evidence("value", _short(value), where=where)] if value is not None else []
        evidence += [Evidence(name, _short(item), where=where) for name, item in values.items()]
        if not evidence:
            evidence = [Evidence("field", where.rpartition(".")[2], where=where)]
        self.findings.append(
            make_finding(rule, rule_texts("rank_table")[rule], evidence, values={"where": where})
        )


@dataclass(frozen=True)
class Node:
    """An object of the JSON file with its path; its getters report what doesn't fit."""

    value: dict[str, Any]
    where: str
    problems: Problems
    numbers: bool
    """Whether this template writes counts and ids as JSON numbers (2.0) or as texts."""

    def path(self, key: str) -> str:
        """The field path of a key."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.value.get(key) is not None

    def text(self, key: str, *, required: bool = True) -> str | None:
        """A text; None where it is missing, empty or something else."""
        value = self.value.get(key)
        if value is None:
            self._missing(key, required)
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            self.problems.add("scalar_style", self.path(key), found="a number", expected="a text")
            return str(value)
        if not isinstance(value, str):
            self._wrong(key, value, "a text")
            return None
        if not value.strip():
            if required:
                self.problems.add("field_empty", self.path(key))
            return None
        return value

    def number(self, key: str, *, required: bool = True) -> int | None:
        """A whole number from 0 on, written as the template writes it or the other way round."""
        value = self.value.get(key)
        if value is None:
            self._missing(key, required)
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self._wrong(key, value, "a number" if self.numbers else "a text of digits")
            return None
        if isinstance(value, str) and not value.strip():
            self.problems.add("field_empty", self.path(key))
            return None
        if not _DIGITS.fullmatch(str(value)):
            self.problems.add("number_malformed", self.path(key), str(value))
            return None
        if isinstance(value, str) == self.numbers:
            found, expected = ("a text", "a number") if self.numbers else ("a number", "a text")
            self.problems.add("scalar_style", self.path(key), found=found, expected=expected)
        return int(value)

    def nodes(self, key: str, *, required: bool = True) -> "list[Node]":
        """The objects of a list; other items are reported and left out."""
        value = self.value.get(key)
        if value is None:
            self._missing(key, required)
            return []
        if not isinstance(value, list):
            self._wrong(key, value, "a list")
            return []
        if not value and required:
            self.problems.add("field_empty", self.path(key))
        found = []
        for at, item in enumerate(value):
            where = f"{self.path(key)}[{at}]"
            if isinstance(item, dict):
                found.append(Node(item, where, self.problems, self.numbers))
            else:
                self.problems.add("field_type", where, found=kind_of(item), expected="an object")
        return found

    def count(self, key: str, items: int, *, required: bool = True) -> None:
        """Compare a declared count with what is there."""
        declared = self.number(key, required=required)
        if declared is not None and declared != items:
            self.problems.add("count_mismatch", self.path(key), declared=declared, counted=items)

    def _missing(self, key: str, required: bool) -> None:
        if required:
            self.problems.add("field_missing", self.path(key))

    def _wrong(self, key: str, value: object, expected: str) -> None:
        self.problems.add("field_type", self.path(key), found=kind_of(value), expected=expected)


def kind_of(value: object) -> str:
    """The JSON type in words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _short(value: Value) -> Value:
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]}…"
    return value
