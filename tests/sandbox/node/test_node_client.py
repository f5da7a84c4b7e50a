"""A client in another stack: Node with @grpc/grpc-js, from the .proto files alone."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.processes import SandboxProcess, turn_request

HERE = Path(__file__).resolve().parent
SANDBOX_PROTO = HERE.parents[2] / "protos" / "sandbox.proto"


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its packages, in a folder of its own."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm aren't installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "client.js", "health.proto"):
        shutil.copy(HERE / name, folder)
    try:
        installed = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm didn't get the client's packages within two minutes")
    if installed.returncode:
        pytest.skip(f"npm can't install the client's packages: {installed.stderr.strip().splitlines()[:1]}")
    return folder


def test_a_node_client_opens_a_session_streams_a_turn_and_reads_health(
    server: SandboxProcess, node_client: Path
) -> None:
    command = ["node", "client.js", server.address, str(SANDBOX_PROTO), "health.proto"]
    done = subprocess.run(command, cwd=node_client, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    ours = server.stub.Turn(
        turn_request(server.open(system_text="be kind", locale="en"), "您好, my card is lost"), timeout=60
    )
    assert seen["health"] == "SERVING"
    assert seen["modelDigest"] == server.ready["model_digest"]
    assert seen["pieces"] > 1
    assert seen["tokenIds"] == list(ours.token_ids)
    assert seen["joined"] == seen["text"] == ours.text
    assert (seen["finishReason"], seen["state"], seen["closed"]) == ("LENGTH", "OPEN", "CLOSED")
    assert seen["requestId"] == "from-node"
    assert seen["repeatedEqual"] is True
    assert seen["refused"] == {
        "code": "INVALID_ARGUMENT",
        "details": "user_text: is empty; send what the user says",
    }
