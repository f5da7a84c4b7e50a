"""The committed stubs are exactly what the .proto generates."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def test_committed_stubs_equal_generated_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-Ievalkit/wire={PROJECT / 'protos'}"]
    command += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([*command, "evalkit/wire/sandbox.proto"], check=True, timeout=120)
    generated = sorted((tmp_path / "evalkit" / "wire").iterdir())
    assert [file.name for file in generated] == ["sandbox_pb2.py", "sandbox_pb2.pyi", "sandbox_pb2_grpc.py"]
    for file in generated:
        committed = PROJECT / "evalkit" / "wire" / file.name
        assert committed.read_text() == file.read_text(), f"{file.name} is stale: run `make protos`"
