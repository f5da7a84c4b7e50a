"""One server with everything that secures and shows it: mutual TLS, tokens, metrics, JSON log, reflection.

It runs the MindIR, so that the two engines can be compared without one more server.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sandbox.processes import SandboxProcess, serving
from tests.sandbox.security.certificates import Certificates, make_certificates

TOKENS = {"bank-a": "token-of-a-5512", "bank-b": "token-of-b-9034"}


@dataclass(frozen=True)
class SecuredServer:
    """The server, seen by a client of bank-a, and what its files are."""

    server: SandboxProcess
    files: Certificates
    tokens_file: Path


@pytest.fixture(scope="session")
def secured(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """Shared by the tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("secured")
    files = make_certificates(folder)
    tokens_file = folder / "tokens"
    tokens_file.write_text("".join(f"{tenant}:{token}\n" for tenant, token in TOKENS.items()))
    options = [*files.options(), f"--tokens-file={tokens_file}", "--metrics=127.0.0.1:0", "--log-format=json"]
    credentials = files.client(TOKENS["bank-a"])
    options += ["--reflection", "--engine=mindir"]
    with serving(tiny_bundle, folder, *options, credentials=credentials) as server:
        yield SecuredServer(server, files, tokens_file)
