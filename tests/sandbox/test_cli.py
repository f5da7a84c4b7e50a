"""The command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.processes import stopped_engine, stopping_engine


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments], capture_output=True, text=True, timeout=120
    )


def test_help_lists_what_works_and_loads_nothing_heavy() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.partition("Commands:")[2].strip().splitlines()] == [
        "chat",
        "fit",
        "serve",
    ]
    code = "import sys, sandbox.cli; print([m for m in sys.modules if m in ('mindspore', 'sklearn', 'numpy', 'grpc')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_fit_writes_the_artefact_and_its_card(flow_folder: Path, tmp_path: Path) -> None:
    done = run("fit", "intent", str(flow_folder.parent / "intents.csv"), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "intent.card.json").read_text())
    assert card["data"] == "generated"
    assert f"accuracy {card['measured']['accuracy']:.3f}" in done.stdout
    assert (tmp_path / "intent.skops").is_file()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "column 'text' is missing"),
        ("text,label\na,b\n", "unknown column 'label'"),
        ("text,text,intent\na,b,c\n", "column 'text' appears twice"),
        ("text,intent\nhello,greeting\nhi\n", ":3: 1 fields, the header has 2"),
        ("text,intent\nhello,greeting\n ,greeting\n", ":3: text: is empty"),
        ('text,intent\n"hello,greeting\n', ":2: broken CSV"),
        ("text,intent\n", "has no examples"),
        ("text,intent\n" + "".join(f"hello {'x' * n},a\n" for n in range(9)), "the same label 'a'"),
        (
            "text,intent\nx,b\n" + "".join(f"hello {'x' * n},a\n" for n in range(9)),
            "'b' has 1 different examples",
        ),
        (
            "text,intent\n" + "".join(f"Hello {n},a\nbye {n},b\n" for n in range(9)),
            "'a' has 1 different examples; at least 5 are needed (numbers and capitals make no difference)",
        ),
        ("text,intent\n\x00,a\n", "binary"),
    ],
)
def test_bad_data_is_one_line_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    from evalkit.errors import InputError
    from sandbox.business.examples import read_intent_examples

    file = tmp_path / "data.csv"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        read_intent_examples(file)
    assert str(error.value).startswith(str(file))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_data_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("text,intent\nhello\n")
    done = run("fit", "intent", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("hi,yes,0,0,6", ":2: satisfaction: 6 isn't a rating"),
        ("hi,yes,-1,0,5", ":2: turn_index: '-1' isn't a whole number"),
        ("hi,yes,0,x,5", ":2: failed_turns: 'x' isn't a whole number"),
        (",yes,0,0,5", ":2: user_text: is empty"),
    ],
)
def test_bad_ratings_name_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    from evalkit.errors import InputError
    from sandbox.business.examples import read_satisfaction_examples

    file = tmp_path / "data.csv"
    file.write_text(f"user_text,reply,turn_index,failed_turns,satisfaction\n{row}\n")
    with pytest.raises(InputError) as error:
        read_satisfaction_examples(file)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_before_the_loop_begins_ends_the_server_cleanly(name: str) -> None:
    program = (
        "import os, signal, sandbox.cli as c; from evalkit.console import run\n"
        f"c.served_model = lambda *_, **__: os.kill(os.getpid(), signal.{name})\n"
        "run(c.cli, ['serve', 'bundle'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sigterm_while_loading_ends_the_server_cleanly(tiny_bundle: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=stopping_engine(tmp_path),
    )
    stopped_engine(process.pid)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
