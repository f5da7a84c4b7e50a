"""Strict YAML: every problem is one line with file and line number."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource, load_yaml


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: float
    names: list[str] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: int
    inner: Inner | None = None


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_numbers_in_exponent_form_without_a_dot(tmp_path: Path) -> None:
    assert load_yaml(write(tmp_path, "version: 1\ninner: {rate: 1e-5}\n"), Outer).inner == Inner(rate=1e-5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0123", "0123"),
        ("12:30", "12:30"),
        ("no", "no"),
        ("2026-11-29", "2026-11-29"),
        ("1_000", "1_000"),
        ("0", 0),
        ("-17", -17),
        ("1.5", 1.5),
        ("1e-5", 1e-5),
        ("2.E3", 2000.0),
        ("true", True),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("'12'", "12"),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    found = YamlSource(write(tmp_path, f"key: {text}\n")).value["key"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nversion: 2\n", "file.yaml:2: version: key given twice"),
        ("version: 1\ninner:\n  rate: 1\n  rate: 2\n", "file.yaml:4: inner.rate: key given twice"),
        ("version: 1\ncolour: red\n", "file.yaml:2: colour: unknown key"),
        ("version: 1\ninner:\n  rate: 1\n  speed: 2\n", "file.yaml:4: inner.speed: unknown key"),
        ("version: 1\ninner:\n  names: [a]\n", "file.yaml:2: inner.rate: is required"),
        ("version: x\n", "file.yaml:1: version: "),
        ("version: 1\ninner: {rate: 1, names: [a, [b]]}\n", "file.yaml:2: inner.names.1: "),
        ("version: [1\n", "file.yaml:2: broken YAML"),
        ("a: &x 1\nb: *x\n", "file.yaml:2: broken YAML: aliases"),
        ("- 1\n", "file.yaml:1: a mapping of keys is needed"),
        ("", "file.yaml:1: the file is empty"),
        (b"\x00\x01\xff", "not UTF-8 text"),
        (b"a\x00b", "a binary file"),
        ("!!python/object/apply:os.system ['true']\n", "file.yaml:1: "),
        ("a: " + "[" * 5000 + "\n", "file.yaml:1: broken YAML"),
    ],
)
def test_problem_names_file_line_and_field(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_yaml(write(tmp_path, text), Outer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        YamlSource(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        YamlSource(tmp_path)


def test_line_of_an_unknown_field_is_that_of_its_ancestor(tmp_path: Path) -> None:
    source = YamlSource(write(tmp_path, "version: 1\ninner:\n  rate: 1\n"))
    assert source.line(("inner", "rate")) == 3
    assert source.line(("inner", "absent", 3)) == 2
