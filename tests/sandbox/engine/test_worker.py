"""The engine process before its loop: what it says when it can't begin."""

from typing import Any

import pytest

from sandbox.engine import worker
from sandbox.engine.pipe import ChildPipe


def test_no_memory_for_the_cache_is_one_line_that_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []

    class Pipe:
        def read(self) -> dict[str, Any]:
            return {"kv_bytes": 64 << 20, "nice": 0}

        def write(self, message: dict[str, Any]) -> None:
            said.append(message)

    def build(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ChildPipe, "take_over_stdio", lambda: Pipe())
    monkeypatch.setattr(worker, "build", build)
    monkeypatch.setattr("sys.setswitchinterval", lambda _interval_s: None)
    with pytest.raises(SystemExit):
        worker.main()
    told = "no memory for the model and 64 MiB of cache; give a smaller --kv-mib"
    assert said == [{"event": "failed", "message": told, "exit_code": 2}]
