"""Prepared data on disk: whole or not there, checked at each use, built once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.errors import InputError
from trainer.data.cache import META, prepared

INPUTS = {"made": "of this"}


class Build:
    """Writes one file and counts its calls."""

    def __init__(self, fails: Exception | None = None):
        self.calls, self.fails = 0, fails

    def __call__(self, folder: Path):
        self.calls += 1
        assert list(folder.iterdir()) == []
        (folder / "content").write_text("content")
        if self.fails:
            raise self.fails
        return [], [], {"calls": self.calls}


def test_it_is_built_once_and_named_by_its_inputs(tmp_path):
    build = Build()
    folder, meta = prepared(tmp_path, INPUTS, build)
    again, same = prepared(tmp_path, dict(INPUTS), build)
    assert (folder, meta) == (again, same) and build.calls == 1
    other, _ = prepared(tmp_path, {"made": "of that"}, build)
    assert other != folder and build.calls == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "content").write_text("kontent"), "content has another SHA-256"),
        (lambda folder: (folder / "content").unlink(), "content is missing"),
        (lambda folder: (folder / META).unlink(), "data.json is missing or broken"),
        (lambda folder: (folder / META).write_text("{"), "data.json is missing or broken"),
        (
            lambda folder: (folder / META).write_text(
                (folder / META).read_text().replace("of this", "of else")
            ),
            "data.json doesn't belong to this folder",
        ),
    ],
)
def test_what_is_damaged_is_told_and_built_again(tmp_path, capsys, damage, message):
    build = Build()
    folder, _ = prepared(tmp_path, INPUTS, build)
    damage(folder)
    prepared(tmp_path, INPUTS, build)
    assert build.calls == 2 and message in capsys.readouterr().err
    assert (folder / "content").read_text() == "content"
    prepared(tmp_path, INPUTS, build)
    assert build.calls == 2


def test_a_build_that_fails_leaves_nothing(tmp_path):
    for fails, raised in (
        (InputError("bad data"), "bad data"),
        (OSError(28, "No space left on device"), "No space"),
    ):
        with pytest.raises(InputError, match=raised) as caught:
            prepared(tmp_path, INPUTS, Build(fails))
        assert "\n" not in str(caught.value)
        assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    prepared(tmp_path, INPUTS, Build())


def test_what_a_killed_build_left_is_removed(tmp_path):
    folder, _ = prepared(tmp_path, INPUTS, Build())
    (tmp_path / f".{folder.name}.abc").mkdir()
    (tmp_path / f".{folder.name}.abc" / "half").write_text("half")
    (folder / "content").unlink()
    prepared(tmp_path, INPUTS, Build())
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f"{folder.name}.lock"}


WAIT = """
import sys, time
from pathlib import Path
from trainer.data.cache import prepared
def build(folder):
    time.sleep(0.5)
    (folder / "content").write_text(sys.argv[2])
    print("built")
    return [], [], {}
folder, _ = prepared(Path(sys.argv[1]), {"a": 1}, build)
print((folder / "content").read_text())
"""


def test_of_several_processes_one_builds_and_all_use_it(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAIT, str(tmp_path), str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    out = [process.communicate(timeout=60)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum("built" in lines for lines in out) == 1 and len({lines[-1] for lines in out}) == 1


def test_the_file_is_json_for_people(tmp_path):
    folder, _ = prepared(tmp_path, INPUTS, Build())
    content = json.loads((folder / META).read_text())
    assert content["schema"] == "trainer.data/1" and content["facts"] == {"calls": 1}
