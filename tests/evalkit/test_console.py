"""The exit code of a command whose output nobody reads to the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import sys, click
from evalkit.console import run
@click.command()
def verdict():
    {body}
    return {code}
run(verdict, [])
"""


def unread(body: str, code: int) -> "subprocess.CompletedProcess[str]":
    """Run a command whose standard output has lost its reader."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", COMMAND.format(body=body, code=code)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_outcome_of_a_command_that_is_done_stands_though_nobody_reads_it(code: int) -> None:
    done = unread("sys.stdout = open(1, 'w', closefd=False); sys.stdout.write('FAIL')", code)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("click.echo('verdict'); print('PASS'); sys.stderr.write('done')", 0),
        ("raise click.UsageError('no such file')", 2),
        ("import os; assert os.get_inheritable(1) and os.get_inheritable(2)", 3),
    ],
)
def test_the_exit_code_stands_without_standard_output_or_error(closed: str, body: str, code: int) -> None:
    """A cron job or a supervisor may start a command without them."""
    command = [
        "sh",
        "-c",
        f'exec "$0" -c "$1" {closed}',
        sys.executable,
        COMMAND.format(body=body, code=code),
    ]
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == code


def test_a_reader_that_goes_away_in_the_middle_makes_neither_pass_nor_fail() -> None:
    done = unread("click.echo('verdict')", 0)
    assert (done.returncode, done.stderr) == (4, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_command_runs_without_anywhere_to_print_to(closed: str, code: int, tmp_path: Path) -> None:
    """A file that it opens doesn't get the number of a closed stream, so that nothing else is printed into it."""
    kept = tmp_path / "kept"
    body = f"kept = open({str(kept)!r}, 'w'); import os; [os.write(fd, b'log') for fd in (1, 2)]; click.echo('x'); "
    body += "print('y', file=sys.stderr); kept.write('evidence'); kept.close()"
    command = COMMAND.format(body=body, code=code)
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", command], timeout=60)
    assert (done.returncode, kept.read_text()) == (code, "evidence")
