"""Check environment variables and versions of a training machine against tables of data."""

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.yaml_source import load_yaml
from trainer.diagnosis.rulebook import RuleText, Strict, make_finding, rules_path
from trainer.diagnosis.versions import COMPONENTS, check_versions
from trainer.findings import SEVERITIES, Evidence, Finding, Value
from trainer.regular_file import require_regular

_PREFIX = "HCCL_"
_SETTING = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_LONGEST_SHOWN = 80
_PACKAGE = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)==(\S+)")


class Advice(Strict):
    """Values that are valid, but not for a training run."""

    text: str
    values: tuple[str, ...] = ()
    any: bool = False


class Variable(Strict):
    """What a variable may hold."""

    name: str
    kind: Literal["integer", "choice", "list", "path", "address", "text"]
    source: str
    min: int | None = None
    max: int | None = None
    multiple_of: int | None = None
    values: tuple[str, ...] = ()
    default: str | None = None
    unit: str = ""
    advice: Advice | None = None


class EnvironmentBook(Strict):
    """rules/environment.yaml."""

    variables: tuple[Variable, ...]
    rules: dict[str, RuleText]


@lru_cache(maxsize=1)
def environment_book() -> EnvironmentBook:
    """The variables of this package."""
    return load_yaml(rules_path("environment"), EnvironmentBook)


def read_settings(path: Path | str) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and versions from a file of `NAME=value`, `export NAME=value` and `name==version` lines.

    The output of `env` and of `pip freeze` can be used as they are; other lines are passed over.

    Raises:
        InputError: the file can't be read, or holds neither.
    """
    path = Path(path)
    require_regular(path)
    variables: dict[str, str] = {}
    versions: dict[str, str] = {}
    for line in read_text(path).splitlines():
        line = line.strip()
        if package := _PACKAGE.fullmatch(line):
            name = package.group(1).lower()
            if name in COMPONENTS:
                versions[name] = package.group(2)
        elif setting := _SETTING.fullmatch(line):
            variables[setting.group(1)] = _unquoted(setting.group(2))
    if not variables and not versions:
        raise InputError(f"{path}: no NAME=value line; give the output of `env` of the training machine")
    return variables, versions


def check_environment(
    variables: Mapping[str, str], versions: Mapping[str, str], *, here: bool = True
) -> list[Finding]:
    """Findings about variables and versions, the gravest first.

    Args:
        variables: all variables of the process; those of other programs are passed over.
        versions: by the names in `versions.COMPONENTS`.
        here: whether the variables are this machine's, so that paths in them can be looked at.
    """
    book = environment_book()
    findings = [
        *_values(variables, book, here),
        *_unknown(variables, book),
        *_relations(variables, book),
        *check_versions(versions, book.rules),
    ]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _values(variables: Mapping[str, str], book: EnvironmentBook, here: bool) -> Iterator[Finding]:
    for rule in book.variables:
        value = variables.get(rule.name)
        if value is None:
            continue
        evidence = [
            Evidence("variable", rule.name),
            Evidence("value", value[:_LONGEST_SHOWN], rule.unit),
            Evidence("default", rule.default),
            Evidence("rule", rule.source),
        ]
        expected = _refusal(rule, value, here)
        if expected:
            evidence.insert(2, Evidence("expected", expected))
            yield make_finding(
                "value_refused",
                book.rules["value_refused"],
                evidence,
                values={"default": rule.default or "none"},
            )
        elif rule.advice and (rule.advice.any or value in rule.advice.values):
            evidence.insert(2, Evidence("why", rule.advice.text))
            yield make_finding("value_advised_against", book.rules["value_advised_against"], evidence)


def _refusal(rule: Variable, value: str, here: bool) -> str | None:
    """What is expected instead; None where the value is fine."""
    if rule.kind == "integer":
        return _number_refusal(rule, value)
    if rule.kind == "choice" and value not in rule.values:
        return f"one of {', '.join(rule.values)} is needed"
    if rule.kind == "list":
        items = value.split(",")
        if not all(_NUMBER.fullmatch(item.strip()) for item in items):
            return "device numbers separated by commas are needed"
        if len({int(item) for item in items}) != len(items):
            return "a device stands twice"
    if rule.kind == "path" and here and not _is_file(value):
        return "no such file"
    if rule.kind == "address":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            return "an IP address is needed"
    return None


def _number_refusal(rule: Variable, value: str) -> str | None:
    if not _NUMBER.fullmatch(value.strip()):
        return "a whole number is needed"
    number = int(value)
    low, high = rule.min, rule.max
    if (low is not None and number < low) or (high is not None and number > high):
        if low is not None and high is not None:
            return f"{low} to {high} is the range"
        return f"at least {low} is needed" if low is not None else f"at most {high} is allowed"
    if rule.multiple_of and number % rule.multiple_of:
        return f"a multiple of {rule.multiple_of} is needed"
    return None


def _unknown(variables: Mapping[str, str], book: EnvironmentBook) -> Iterator[Finding]:
    known = [rule.name for rule in book.variables]
    for name in sorted(variables):
        if name in known or not name.upper().startswith(_PREFIX):
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.85)
        if near:
            evidence = [Evidence("variable", name), Evidence("suggestion", near[0])]
            yield make_finding("unknown_variable", book.rules["unknown_variable"], evidence)


def _relations(variables: Mapping[str, str], book: EnvironmentBook) -> Iterator[Finding]:
    def found(rule: str, **values: Value) -> Finding:
        return make_finding(rule, book.rules[rule], [Evidence(name, value) for name, value in values.items()])

    connect = _integer(variables, book, "HCCL_CONNECT_TIMEOUT")
    execution = _integer(variables, book, "HCCL_EXEC_TIMEOUT")
    given = {"HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"} & variables.keys()
    if given and connect is not None and execution is not None and 0 < execution <= connect:
        yield found("connect_not_below_exec", connect_s=connect, exec_s=execution)
    rank, size = _integer(variables, book, "RANK_ID"), _integer(variables, book, "RANK_SIZE")
    if rank is not None and size is not None and rank >= size:
        yield found("rank_outside_world", rank=rank, size=size)
    role = variables.get("MS_ROLE")
    if role and variables.get("RANK_TABLE_FILE"):
        yield found("two_ways_to_start", role=role, rank_table=variables["RANK_TABLE_FILE"])
    if role in ("MS_WORKER", "MS_SCHED"):
        for name in ("MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT"):
            if not variables.get(name):
                yield found("worker_without_scheduler", role=role, missing=name)
    if variables.get("HCCL_IF_IP") and variables.get("HCCL_SOCKET_IFNAME"):
        yield found(
            "interface_named_twice", ip=variables["HCCL_IF_IP"], interface=variables["HCCL_SOCKET_IFNAME"]
        )


def _integer(variables: Mapping[str, str], book: EnvironmentBook, name: str) -> int | None:
    default = next(rule.default for rule in book.variables if rule.name == name)
    text = variables.get(name, default)
    return int(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or a NUL in it
        return False


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
