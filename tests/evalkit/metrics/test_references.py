"""The user's code: found where it may be, named by its source, refused with one line."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics import references
from evalkit.metrics.references import load_reference, modules_folder, trusted_modules


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_module_of_the_folder_is_loaded_and_named_by_its_source(tmp_path):
    path = write(tmp_path, "class Box:\n    value = 7\n", "deep/mine.py")
    found = load_reference("deep.mine:Box.value", tmp_path)
    assert (found.target, found.sha256) == (7, sha256_file(path))
    assert not {"mine", "deep.mine"} & sys.modules.keys()
    assert str(tmp_path) not in sys.path


def test_without_the_key_the_folder_isnt_searched(tmp_path, monkeypatch):
    write(tmp_path, "value = 7\n", "only_in_the_folder.py")
    with pytest.raises(
        InputError, match=r"no module 'only_in_the_folder'; name its folder with the key `modules`"
    ):
        load_reference("only_in_the_folder:value", None)


def test_installed_modules_are_known(tmp_path):
    found = load_reference("evalkit.canonical:sha256_json", tmp_path)
    assert callable(found.target)


def test_entry_points(tmp_path, monkeypatch):
    point = EntryPoint("digest", "evalkit.canonical:sha256_json", references.ENTRY_POINTS)
    twice = EntryPoint("twice", "evalkit.canonical:sha256_json", references.ENTRY_POINTS)
    monkeypatch.setattr(references, "entry_points", lambda group: [point, twice, twice])
    assert load_reference("digest", None).target.__name__ == "sha256_json"
    with pytest.raises(InputError, match=r"no installed package has .* \(there are: digest, twice\)"):
        load_reference("absent", None)
    with pytest.raises(InputError, match="2 installed packages have"):
        load_reference("twice", None)


@pytest.mark.parametrize(
    ("text", "reference", "message"),
    [
        ("value = 7\n", "mine:other", "mine has no 'other'"),
        ("value = 7\n", "mine:", "module:attr is needed"),
        ("value = 7\n", "../mine:value", "module:attr is needed"),
        (
            "a = 1\nb = 1 / 0\n",
            "mine:a",
            r"mine\.py:2: mine:a can't be loaded \(ZeroDivisionError: division by zero\)",
        ),
        ("a = 1\ndef (:\n", "mine:a", r"mine\.py:2: mine:a can't be loaded \(SyntaxError"),
        ("import not_there_at_all\n", "mine:a", r"mine\.py:1: .*No module named 'not_there_at_all'"),
    ],
)
def test_broken_references_are_one_line(tmp_path, text, reference, message):
    write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        load_reference(reference, tmp_path)
    assert "\n" not in str(caught.value)


def test_another_source_than_expected_is_refused_before_it_runs(tmp_path):
    path = write(tmp_path, "raise SystemExit\n")
    with pytest.raises(InputError, match="isn't the code of the run"):
        load_reference("mine:a", tmp_path, "0" * 64)
    assert path.is_file()


def test_the_folder_comes_from_the_scenario_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(references.MODULES_VARIABLE, raising=False)
    assert modules_folder() is None
    with trusted_modules(tmp_path):
        assert modules_folder() == tmp_path
    assert modules_folder() is None
    monkeypatch.setenv(references.MODULES_VARIABLE, "elsewhere")
    assert modules_folder() == Path("elsewhere")
