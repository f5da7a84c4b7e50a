"""A sandbox in front of a local chat-completions server; a conftest imports the fixtures by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.processes import SandboxProcess, serving_command
from tests.support.chat_server import NAME, Behaviour, ChatServer, error, serve

# The flow knows these: a turn that it takes for a failed one would bring a hand-over.
BALANCE, LOST = "what is my balance", "my card is lost"


def options(url: str, *more: str) -> list[str]:
    """Arguments of `sandbox serve`."""
    return ["--engine", "openai", "--endpoint", url, "--model", NAME, "--declare", "vendor/model@1", *more]


@pytest.fixture(scope="session")
def upstream() -> Iterator[ChatServer]:
    """The endpoint; take `sandbox` beside it, which puts its behaviour back."""
    with serve(ChatServer()) as running:
        yield running


@pytest.fixture(scope="session")
def served_process(
    upstream: ChatServer, flow_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxProcess]:
    """The server, shared by every test."""
    upstream.behaviour = Behaviour(max_model_len=4096)
    arguments = options(upstream.url, "--flow", str(flow_folder), "--endpoint-timeout-s", "2")
    with serving_command(arguments, tmp_path_factory.mktemp("served")) as process:
        yield process


@pytest.fixture
def sandbox(served_process: SandboxProcess, upstream: ChatServer) -> SandboxProcess:
    """The server, with an endpoint in its best behaviour."""
    upstream.behaviour = Behaviour()
    upstream.requests.clear()
    return served_process


def broken(status: int, **headers: str) -> Behaviour:
    """An endpoint that answers with an error."""
    return Behaviour(intercept=lambda number, body: error(status, "on purpose", **headers))
