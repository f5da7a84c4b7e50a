"""A batcher driven by hand, with a model whose next token is the sum of what it sees: every lost or doubled token shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sandbox.engine.batcher import Batcher, BatchLimits
from sandbox.engine.kv_cache import KvRows, KvShape
from sandbox.engine.prefix_cache import PrefixCache

SHAPE = KvShape(layers=1, kv_heads=1, head_size=1)
END = 2
VOCABULARY = 97


class SummingModel:
    """Keys hold the tokens themselves; the next token is their sum, times 7, modulo the vocabulary.

    Values remember how they were computed (1 by prefill, 2 by decode), and what a row's holder didn't ask for
    is overwritten with rubbish where the Protocol allows it.
    """

    vocab_size = VOCABULARY

    def __init__(self, alignment: int = 1, chunk_tokens: int = 4) -> None:
        self.alignment = alignment
        self.chunk_tokens = chunk_tokens
        self.idle_chunk_tokens = max(chunk_tokens, alignment)
        self.calls: list[tuple[str, int]] = []

    def prefill(self, rows: KvRows, row: int, ids: Sequence[int], start: int) -> np.ndarray:
        assert start % self.alignment == 0
        keys, values = rows.parts
        self.calls.append(("prefill", len(ids)))
        keys[row, 0, start : start + len(ids), 0] = ids
        values[row, 0, start : start + len(ids), 0] = 1
        keys[row, 0, start + len(ids) :, 0] = 1000.0
        return self._logits(keys[row, 0, : start + len(ids), 0])

    def decode(self, rows: KvRows, wanted: Sequence[int], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        keys, values = rows.parts
        self.calls.append(("decode", len(wanted)))
        for row, length in enumerate(lengths):
            keys[row, 0, length:, 0] = 500.0
            if row in wanted:
                keys[row, 0, length, 0] = ids[row]
                values[row, 0, length, 0] = 2
        return np.stack([self._logits(keys[row, 0, : lengths[row] + 1, 0]) for row in wanted])

    def warm_up(self, rows: KvRows) -> None:
        """Nothing to do."""

    def _logits(self, seen: np.ndarray) -> np.ndarray:
        logits = np.zeros(VOCABULARY, np.float32)
        logits[(int(seen.sum()) * 7 + 3) % VOCABULARY] = 1.0
        return logits


class Letters:
    """One letter a token."""

    end_token = END

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(65 + token % 26) for token in ids)


class Outbox:
    """Collects what the engine sends."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [message for message in self.all if message["event"] != "load"]

    @property
    def load(self) -> dict[str, Any]:
        return [message for message in self.all if message["event"] == "load"][-1]

    def write(self, *messages: dict[str, Any]) -> None:
        self.all.extend(messages)


class Bench:
    """See the module."""

    def __init__(
        self,
        row_tokens: int = 4096,
        blocks: int = 64,
        max_rows: int = 8,
        max_waiting: int = 8,
        model: SummingModel | None = None,
    ) -> None:
        self.outbox = Outbox()
        self.model = model or SummingModel()
        self.cache = PrefixCache(SHAPE, blocks)
        self.batcher = Batcher(
            self.model,
            Letters(),  # type: ignore[arg-type]
            self.cache,
            KvRows(SHAPE, row_tokens),
            self.outbox,
            BatchLimits(max_rows, max_waiting, 512),
        )

    def start(self, request: int, key: int, prompt: list[int], *asked: Any, **sampling: Any) -> None:
        self.batcher.handle(self.message(request, key, prompt, *asked, **sampling))

    def message(
        self,
        request: int,
        key: int,
        prompt: list[int],
        max_new_tokens: int = 6,
        stop: tuple[str, ...] = (),
        tenant: str = "",
        shared: int = 0,
        arrived_ns: int | None = None,
        **sampling: float,
    ) -> dict[str, Any]:
        """What the server sends to ask for a turn; `arrived_ns` is the reader's."""
        settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, **sampling}
        message: dict[str, Any] = {"op": "generate", "request": request, "key": key, "prompt": prompt}
        message |= {"tenant": tenant, "shared": shared}
        message["sampling"] = {"max_new_tokens": max_new_tokens, "stop": list(stop), **settings}
        return message if arrived_ns is None else {**message, "arrived_ns": arrived_ns}

    def cancel(self, request: int) -> None:
        self.batcher.handle({"op": "cancel", "request": request})

    def release(self, key: int) -> None:
        self.batcher.handle({"op": "release", "key": key})

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.batcher.round()

    def finish(self) -> None:
        while self.batcher.busy:
            self.batcher.round()
        self.batcher.round()

    def answer(self) -> None:
        """Run until every turn has its reply; nothing settles."""
        while self.batcher._turns:
            self.batcher.round()

    def ids(self, request: int) -> list[int]:
        return [m["id"] for m in self.outbox.messages if m["request"] == request and m.get("id") is not None]

    def end(self, request: int) -> dict[str, Any]:
        [end] = [m for m in self.outbox.messages if m["request"] == request and m["event"] == "end"]
        return end


def expected(prompt: list[int], count: int = 6) -> list[int]:
    """What the model's arithmetic gives."""
    seen, new = list(prompt), []
    for _ in range(count):
        new.append((sum(seen) * 7 + 3) % VOCABULARY)
        seen.append(new[-1])
        if new[-1] == END:
            break
    return new


def prompt_of(length: int, first: int = 5) -> list[int]:
    """A prompt that differs from others by its first token."""
    return [first, *(10 + number % 80 for number in range(length - 1))]
