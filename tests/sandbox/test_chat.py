"""`sandbox chat` as people use it: from a pipe, and on a real pseudo-terminal."""

import codecs
import contextlib
import fcntl
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from rich.console import Console

from evalkit.replay.client import SandboxClient, SandboxError
from sandbox.chat_screen import StreamedText, shown
from tests.sandbox.processes import eventually
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\x01\x02]")


def answer(session: FakeSession, text: str) -> Answer:
    """A small bot."""
    if "human" in text:
        return Answer("A colleague takes over.", intent="contact_human", handover=True, satisfaction=2.0)
    if "busy" in text and len(session.texts) == 0 and not session.replies:
        session.replies["x"] = None
        raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_s=0.05)
    if "bad" in text:
        raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "user_text: too long")
    return Answer(f"You said: {text}", intent="greeting", handover=False, satisfaction=4.4)


@pytest.fixture
def sandbox() -> Iterator[tuple[FakeSandbox, str]]:
    served = FakeSandbox(answer)
    with serve(served) as address:
        yield served, address


def command(address: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "sandbox", "chat", address, *options]


def piped(address: str, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(address, *options), input=text, capture_output=True, text=True, timeout=60, check=False
    )


class Terminal:
    """A program on a pseudo-terminal of 120 columns."""

    def __init__(self, arguments: list[str]) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(ours, (30, 120))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self._ours = ours
        # A read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.raw = ""
        self.text = ""

    def type(self, text: str | bytes) -> None:
        """Press keys; what is typed before line editing has begun means something else."""
        assert eventually(lambda: not termios.tcgetattr(self._ours)[3] & termios.ICANON)
        os.write(self._ours, text if isinstance(text, bytes) else text.encode())

    def ctrl_c(self) -> None:
        """While the program is at work."""
        os.write(self._ours, b"\x03")

    def ctrl_c_at_the_prompt(self, expected: str) -> None:
        """Again where it isn't answered: just before Python waits for keys it notices none."""
        pressed = -math.inf
        end = time.monotonic() + 30
        while expected not in self.text:
            assert time.monotonic() < end, f"no {expected!r} in {self.text!r}"
            if time.monotonic() - pressed > 2:
                pressed = time.monotonic()
                self.ctrl_c()
            self._read(0.2)
        self.until(expected)

    def until(self, expected: str, seconds: float = 30.0) -> str:
        """Wait for a text; what came before and with it is taken off."""
        end = time.monotonic() + seconds
        while expected not in self.text:
            assert time.monotonic() < end, f"no {expected!r} in {self.text!r}"
            self._read(0.2)
        before, found, self.text = self.text.partition(expected)
        return before + found

    def _read(self, wait_s: float) -> None:
        readable, _, _ = select.select([self._ours], [], [], wait_s)
        if readable:
            try:
                piece = self._decoder.decode(os.read(self._ours, 65536))
            except OSError:  # the other end is closed
                piece = ""
            self.raw += piece
            self.text += _ESCAPES.sub("", piece).replace("\r", "")

    def ended(self, seconds: float = 20.0) -> int:
        """The exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.05)
        return self.process.wait(1)


@contextmanager
def terminal(arguments: list[str]) -> Iterator[Terminal]:
    """Run until the block ends."""
    running = Terminal(arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_from_a_pipe_every_line_is_a_turn_and_replies_are_plain(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    done = piped(address, "hello\n\n//slash\n/transcript\n", "--locale", "zh")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:3] == ["you: hello", "bot: You said: hello", lines[2]]
    assert lines[2].startswith("  intent greeting 0% · hand-over no (0.00) · satisfaction ★★★★☆ 4.4")
    assert lines[3].startswith("  first token ") and "prompt 10, 0 reused" in lines[3]
    assert "bot: You said: /slash" in lines
    assert lines[-4:] == ["you: hello", "bot: You said: hello", "you: /slash", "bot: You said: /slash"]
    assert "\x1b" not in done.stdout
    assert [session.locale for session in served.sessions.values()] == ["zh"]
    assert served.closed == list(served.sessions)


def test_options_reach_the_server(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    options = [
        "--temperature",
        "0.5",
        "--top-k",
        "7",
        "--top-p",
        "0.5",
        "--seed",
        "3",
        "--max-new-tokens",
        "9",
    ]
    assert piped(address, "hi\n", *options, "--stop", "a", "--stop", "b").returncode == 0
    sampling = served.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.5)
    assert (sampling.seed, sampling.max_new_tokens, list(sampling.stop)) == (3, 9, ["a", "b"])


def test_json_is_one_object_and_nothing_else(sandbox: tuple[FakeSandbox, str]) -> None:
    done = piped(sandbox[1], "hello\n/help\n", "--json")
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["model"] == "m" * 64
    (turn,) = content["turns"]
    assert (turn["user_text"], turn["text"], turn["intent"]) == ("hello", "You said: hello", "greeting")
    assert (turn["handover"], turn["prompt_tokens"], turn["state"]) == (False, 10, "OPEN")


def test_what_was_said_wrongly_ends_a_pipe_with_exit_code_2(sandbox: tuple[FakeSandbox, str]) -> None:
    done = piped(sandbox[1], "bad\nhello\n")
    assert (done.returncode, done.stderr) == (2, "error: sandbox: user_text: too long\n")
    assert "You said" not in done.stdout


def test_a_reader_that_went_away_is_no_error(sandbox: tuple[FakeSandbox, str]) -> None:
    pipe = subprocess.Popen(
        command(sandbox[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert pipe.stdin and pipe.stdout and pipe.stderr
    pipe.stdin.write("hello\n")
    pipe.stdin.flush()
    assert pipe.stdout.readline()
    pipe.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        pipe.stdin.write("hello\n" * 5)
        pipe.stdin.close()
    told = pipe.stderr.read()
    assert (pipe.wait(30), told) == (0, "")


def unread(pipe: IO[str]) -> int:
    """Bytes that nobody has read yet."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_ctrl_c_keeps_what_was_finished_in_json(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    pipe = subprocess.Popen(
        command(address, "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert pipe.stdin
    pipe.stdin.write("hello\n")
    pipe.stdin.flush()
    assert eventually(lambda: any(session.replies for session in served.sessions.values()))
    # It reads on when the reply has come.
    pipe.stdin.write("\n")
    pipe.stdin.flush()
    assert eventually(lambda: not unread(pipe.stdin))
    pipe.send_signal(signal.SIGINT)
    out, err = pipe.communicate(timeout=30)
    assert [turn["text"] for turn in json.loads(out)["turns"]] == ["You said: hello"]
    assert (pipe.returncode, err.strip()) == (4, "error: interrupted; what was finished is kept")


def test_what_isnt_utf8_in_a_pipe_is_exit_code_2_and_names_the_line(sandbox: tuple[FakeSandbox, str]) -> None:
    for locale in ("C.UTF-8", "C"):
        done = subprocess.run(
            command(sandbox[1]),
            input="\ufeffhello\n您好\n".encode() + b"x\xff\n",
            capture_output=True,
            timeout=60,
            env={**os.environ, "LC_ALL": locale},
        )
        assert done.returncode == 2
        assert done.stderr == b"error: input line 3: isn't UTF-8 text; convert the input to UTF-8\n"
        assert "You said: hello" in done.stdout.decode() and "You said: 您好" in done.stdout.decode()


def test_options_that_arent_utf8_are_named(sandbox: tuple[FakeSandbox, str]) -> None:
    for option in ("--system", "--tenant", "--stop"):
        arguments = [*(each.encode() for each in command(sandbox[1])), option.encode(), b"x\xff"]
        done = subprocess.run(arguments, input=b"", capture_output=True, timeout=60)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1
        assert f"error: {option}: isn't valid Unicode text".encode() in done.stderr


def test_an_unknown_token_is_the_callers_mistake(
    sandbox: tuple[FakeSandbox, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evalkit.console import run
    from sandbox.cli import cli

    def refuse(client: SandboxClient) -> None:
        raise SandboxError("UNAUTHENTICATED", "the token isn't known here")

    monkeypatch.setattr(SandboxClient, "describe", refuse)
    with pytest.raises(SystemExit) as ended:
        run(cli, ["chat", sandbox[1]])
    assert ended.value.code == 2 and "--token-file" in capsys.readouterr().err


def test_a_turn_after_the_hand_over_ends_a_pipe_with_exit_code_4(sandbox: tuple[FakeSandbox, str]) -> None:
    done = piped(sandbox[1], "a human\nhello\n")
    assert done.returncode == 4 and "FAILED_PRECONDITION" in done.stderr
    assert "handed over to a person" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "HOST:PORT is needed"),
        (["127.0.0.1:1", "--tls-cert", "x.pem"], 2, "go together"),
        (["127.0.0.1:1", "--token-file", "none"], 2, "No such file"),
        (["127.0.0.1:1", "--top-p", "0"], 2, "--top-p"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], code: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "chat", *arguments],
        input="",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code and message in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_nobody_there_is_exit_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    from sandbox import chat_session
    from sandbox.cli import cli

    monkeypatch.setattr(chat_session, "_CONNECT_TIMEOUT_S", 0.1)
    from evalkit.console import run

    with pytest.raises(SystemExit) as caught:
        run(cli, ["chat", "127.0.0.1:1"])
    assert caught.value.code == 4


def test_on_a_terminal_replies_stream_and_details_follow(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    served.delay_s = 0.05
    with terminal(command(address)) as screen:
        screen.until("Ctrl-D ends")
        screen.until("you ▸ ")
        screen.type("hello there\n")
        screen.until("bot ▸ You said: hello there")
        assert "thinking" in screen.raw
        assert "intent greeting 0% · hand-over no (0.00) · satisfaction ★★★★☆ 4.4" in screen.until(
            "first token"
        )
        screen.until("you ▸ ")
        screen.type("/hepl\n")
        screen.until("did you mean /help?")
        screen.until("you ▸ ")
        screen.type("/transcript\n")
        screen.until("bot ▸ You said: hello there")
        screen.until("you ▸ ")
        screen.type("\x04")
        assert screen.ended() == 0
    assert served.closed == list(served.sessions)


def test_on_a_terminal_ctrl_c_stops_the_reply_and_not_the_program(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    served.delay_s = 0.2
    with terminal(command(address)) as screen:
        screen.until("you ▸ ")
        screen.type("one two three four five six seven eight nine ten\n")
        screen.until("bot ▸ You")
        screen.ctrl_c()
        screen.until("stopped; the turn left no trace")
        screen.until("you ▸ ")
        screen.ctrl_c_at_the_prompt("Ctrl-D or /quit ends")
        screen.until("you ▸ ")
        served.delay_s = 0.0
        screen.type("still here\n")
        screen.until("bot ▸ You said: still here")
        screen.until("you ▸ ")
        screen.type("/quit\n")
        assert screen.ended() == 0


def test_on_a_terminal_problems_are_shown_and_the_talk_goes_on(sandbox: tuple[FakeSandbox, str]) -> None:
    served, address = sandbox
    with terminal(command(address, "--system", "be kind")) as screen:
        screen.until("you ▸ ")
        screen.type("busy\n")
        screen.until("full; trying again in")
        screen.until("bot ▸ You said: busy")
        screen.until("you ▸ ")
        screen.type("a human please\n")
        screen.until("hand-over 0.00: ")
        screen.until("handed over to a person")
        screen.until("you ▸ ")
        screen.type("hello?\n")
        screen.until("(FAILED_PRECONDITION); /reset begins a new session")
        screen.until("you ▸ ")
        screen.type("/system speak of cards\n")
        screen.until("a new session, system text: speak of cards")
        screen.until("you ▸ ")
        screen.type("hello\n")
        screen.until("bot ▸ You said: hello")
        screen.until("you ▸ ")
        screen.type("\x04")
        assert screen.ended() == 0
    assert len(served.sessions) == 2 and sorted(served.closed) == sorted(served.sessions)


def test_on_a_terminal_a_line_that_isnt_utf8_is_told_and_the_talk_goes_on(
    sandbox: tuple[FakeSandbox, str],
) -> None:
    with terminal(command(sandbox[1])) as screen:
        screen.until("you ▸ ")
        screen.type(b"x\xff\n")
        screen.until("isn't UTF-8 text and wasn't sent")
        screen.until("you ▸ ")
        screen.type("hello\n")
        screen.until("bot ▸ You said: hello")
        screen.until("you ▸ ")
        screen.type("\x04")
        assert screen.ended() == 0


def laid_out(text: str, width: int = 20, indent: int = 6) -> list[str]:
    """Lines as they stand on a terminal, the text fed character by character."""
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print("bot > ", end="")
        streamed = StreamedText(console, indent)
        for character in text:
            streamed.feed(character)
        streamed.end()
    return captured.get().splitlines()


def test_words_stay_whole_and_lines_hang() -> None:
    assert laid_out("one two three four five") == ["bot > one two three", "      four five"]
    assert laid_out("a\n\nb") == ["bot > a", "      ", "      b"]
    assert laid_out("您好您好您好您好您好") == ["bot > 您好您好您好您", "      好您好"]
    assert "".join(laid_out("x" * 40)).replace(" ", "").count("x") == 40


def test_a_model_cannot_steer_the_terminal() -> None:
    assert shown("a\x1b[2Jb\x07\u202ec\r\nd") == "a\ufffd[2Jb\ufffd\ufffdc\ufffd\nd"
    assert shown("您好 😀 é\t") == "您好 😀 é\t"


def test_the_command_needs_no_model_code(tmp_path: Path) -> None:
    """Talking to a server loads neither MindSpore nor scikit-learn."""
    program = (
        "import sys; import sandbox.cli, sandbox.chat_session; "
        "print([name for name in ('mindspore', 'sklearn', 'pandas', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
