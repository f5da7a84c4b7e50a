"""From the options of `sandbox chat` to a conversation on a terminal or over a pipe."""

import contextlib
import io
import json
import sys
from pathlib import Path

from rich.console import Console

from evalkit.errors import InputError
from evalkit.replay.client import Access, Sampling, SandboxClient, SandboxError, ServerInfo
from evalkit.replay.replies import check_text
from sandbox.chat import Chat, ChatOptions, ReadLine, as_json, mendable
from sandbox.chat_screen import Screen

_CONNECT_TIMEOUT_S = 10.0


def talk(
    address: str,
    *,
    system_text: str,
    locale: str | None,
    tenant: str,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop: tuple[str, ...],
    timeout_s: float,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    json_output: bool,
) -> None:
    """Hold a conversation; the arguments are the options of the command.

    Raises:
        InputError: an option doesn't fit, or the server refuses it.
        SandboxError: the server doesn't answer.
    """
    check_address(address)
    for option, text in (
        ("--system", system_text),
        ("--tenant", tenant),
        *(("--stop", each) for each in stop),
    ):
        check_text(**{option: text})
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not json_output
    console = _PipeConsole(file=io.StringIO() if json_output else None, highlight=False)
    screen = Screen(console)
    sampling = Sampling(max_new_tokens or 0, temperature, seed, top_k, top_p, stop)
    options = ChatOptions(system_text, locale or "", tenant, sampling, timeout_s, on_terminal)
    with SandboxClient(address, Access(tls_ca, tls_cert, tls_key, token_file)) as client:
        client.wait_until_ready(_CONNECT_TIMEOUT_S)
        try:
            info = client.describe()
        except SandboxError as error:
            raise mendable(error) from None
        if on_terminal:
            screen.welcome(address, info)
        chat = Chat(client, screen, options)
        try:
            chat.run(_reader(screen) if on_terminal else _piped_lines())
        except KeyboardInterrupt:
            # What was finished is kept: it stands nowhere but here.
            if json_output:
                _print_json(chat, address, info)
            raise
    if json_output:
        _print_json(chat, address, info)


def _print_json(chat: Chat, address: str, info: ServerInfo) -> None:
    sys.stdout.write(json.dumps(as_json(chat, address, info.identity), ensure_ascii=False) + "\n")


class _PipeConsole(Console):
    """A console whose reader may go away (head, less): no error, as for every other command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def check_address(address: str) -> None:
    """Refuse what is no HOST:PORT.

    Raises:
        InputError: with what to write instead.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 1 << 16):
        raise InputError(f"{address}: HOST:PORT is needed, as `sandbox serve` prints it")


def _reader(screen: Screen) -> ReadLine:
    # Importing it gives input() line editing and a history; not every platform has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    return lambda: input(screen.prompt())


def _piped_lines() -> ReadLine:
    """The lines of standard input one after the other, whatever encoding the locale thinks of: text is UTF-8."""
    number = 0

    def read() -> str:
        nonlocal number
        number += 1
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"input line {number}: isn't UTF-8 text; convert the input to UTF-8") from None

    return read
