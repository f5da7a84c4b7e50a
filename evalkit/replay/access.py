"""How a client shows itself to a sandbox: files of TLS and of the bearer token. Light, for the command line."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from evalkit.errors import InputError

_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Access:
    """How a client shows itself to a server. Without `ca` the connection is plain.

    Attributes:
        ca: PEM file of the authority that signed the server's certificate; its presence switches TLS on.
        cert, key: PEM files of the client's own certificate, for servers that ask for one.
        token_file: file that holds the bearer token and nothing else.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InputError("a client's certificate and its key go together; give both files, or none")
        if self.cert is not None and self.ca is None:
            raise InputError("a client's certificate needs TLS; give the file of the authority (ca) too")

    def token(self) -> str | None:
        """The bearer token.

        Raises:
            InputError: the file can't be read, or holds no token.
        """
        if self.token_file is None:
            return None
        token = read_file(self.token_file, "token file").decode("utf-8-sig", errors="replace").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError(f"{self.token_file}: must hold one token of printable ASCII and nothing else")
        return token


def read_file(path: Path, what: str) -> bytes:
    """A small file's bytes.

    Raises:
        InputError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {what}: {error.strerror}; give a readable file") from None


def sandbox_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --sandbox and the files that go with it; the command takes `sandbox` and `sandbox_access`."""

    @functools.wraps(command)
    def with_access(
        *arguments: Any,
        sandbox_ca: Path | None,
        sandbox_cert: Path | None,
        sandbox_key: Path | None,
        sandbox_token_file: Path | None,
        **options: Any,
    ) -> Any:
        access = Access(sandbox_ca, sandbox_cert, sandbox_key, sandbox_token_file)
        if access != Access() and options["sandbox"] is None:
            raise InputError("--sandbox: is missing; the other --sandbox-… options belong to it")
        return command(*arguments, sandbox_access=access, **options)

    for option in (
        click.option(
            "--sandbox-token-file",
            type=_FILE,
            help="File that holds the sandbox's bearer token and nothing else.",
        ),
        click.option("--sandbox-key", type=_FILE, help="Key of --sandbox-cert (PEM)."),
        click.option(
            "--sandbox-cert", type=_FILE, help="Own certificate, for a sandbox that asks for one (PEM)."
        ),
        click.option(
            "--sandbox-ca", type=_FILE, help="Authority that signed the sandbox's certificate (PEM): use TLS."
        ),
        click.option(
            "--sandbox", metavar="ADDR", help="Replay the candidate's dialogues against this running sandbox."
        ),
    ):
        option(with_access)
    return with_access
