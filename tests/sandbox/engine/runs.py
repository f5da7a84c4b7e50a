"""The engine with a real model, in a process of its own: `python -m tests.sandbox.engine.runs < settings.json`.

It answers the same three-turn talks in many ways and prints their token ids by way.
"""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sandbox.engine.bench import Outbox

Talk = list[list[int]]  # what the user says in each turn, as token ids
_NEW = 20


# How the same talks are answered; "cold" is what the others must equal.
WAYS = (
    "cold",
    "warm",
    "warm at once",
    "after a cancel",
    "together",
    "together at once",
    "interleaved",
    "drawn alone",
    "drawn together",
    "after eviction",
)


def run_ways(
    bundle: Path, engine: str, talks: list[Talk], ways: Sequence[str] = WAYS, new_tokens: int = _NEW
) -> dict[str, Any]:
    """Run this file on a bundle; returns, by way, the replies of each talk."""
    settings = {"bundle": str(bundle), "engine": engine, "talks": talks, "new_tokens": new_tokens}
    settings["ways"] = list(ways)
    command = [sys.executable, "-m", "tests.sandbox.engine.runs"]
    done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ways: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return ways


class Runner:
    """One engine and its talks."""

    def __init__(self, bundle: Path, name: Any, talks: list[Talk], new_tokens: int) -> None:
        from evalkit.bundle import load_bundle
        from sandbox.engine.batcher import Batcher, BatchLimits
        from sandbox.engine.kv_cache import KvRows, divide_budget, room_for
        from sandbox.engine.prefix_cache import PrefixCache
        from sandbox.engine.step_model import kv_shape, open_step_model

        self._talks, self._new = talks, new_tokens
        loaded = load_bundle(bundle)
        shape = kv_shape(loaded)
        self.model = open_step_model(loaded, name, 16)
        self._outbox = Outbox()
        self._number = self._key = 0

        def fresh(tokens: int) -> Batcher:
            plan = divide_budget(shape, tokens * shape.token_bytes, loaded.max_length, 16)
            rows = KvRows(shape, plan.row_tokens)
            rows.lay_out(room_for(1, loaded.max_length), [])
            limits = BatchLimits(16, 100, loaded.max_length)
            return Batcher(
                self.model, loaded.tokenizer, PrefixCache(shape, plan.blocks), rows, self._outbox, limits
            )

        self._fresh = fresh
        self._kv_tokens = max(4096, 2 * loaded.max_length)
        self.batcher = fresh(self._kv_tokens)

    def begin_again(self, tokens: int | None = None) -> None:
        """Begin again with an empty cache, of so many tokens."""
        self.batcher = self._fresh(tokens or self._kv_tokens)

    def key(self) -> int:
        self._key += 1
        return self._key

    def start(self, key: int, prompt: list[int], seed: int = 0, temperature: float = 0.0) -> int:
        self._number += 1
        sampling = {"max_new_tokens": self._new, "stop": [], "temperature": temperature, "top_k": 0}
        sampling |= {"top_p": 1.0, "seed": seed}
        message = {"op": "generate", "request": self._number, "key": key, "tenant": "", "shared": 0}
        self.batcher.handle({**message, "prompt": prompt, "sampling": sampling})
        return self._number

    def finish(self, settle: bool = True) -> None:
        while self.batcher.busy if settle else self.batcher._turns:
            self.batcher.round()

    def ids(self, request: int) -> list[int]:
        return [m["id"] for m in self._outbox.messages if m["request"] == request and m.get("id") is not None]

    def reused(self, request: int) -> int:
        [end] = [m for m in self._outbox.messages if m["request"] == request and m["event"] == "end"]
        return int(end["reused"])

    def talk(
        self, talk: Talk, cold: bool = False, settle: bool = True, cancel: bool = False
    ) -> list[list[int]]:
        """One talk by itself."""
        key, ids, replies = self.key(), [], []
        dice = random.Random(len(talk[0]))
        for said in talk:
            ids = [*ids, *said]
            if cancel:
                victim = self.start(key, ids)
                for _ in range(dice.randrange(1, 12)):
                    self.batcher.round()
                self.batcher.handle({"op": "cancel", "request": victim})
            request = self.start(self.key() if cold else key, ids)
            self.finish(settle)
            replies.append(self.ids(request))
            ids += replies[-1]
        return replies

    def together(self, settle: bool) -> list[list[list[int]]]:
        """All talks at once, turn by turn."""
        keys = [self.key() for _ in self._talks]
        ids: list[list[int]] = [[] for _ in self._talks]
        replies: list[list[list[int]]] = [[] for _ in self._talks]
        for turn in range(len(self._talks[0])):
            requests = []
            for index, talk in enumerate(self._talks):
                ids[index] += talk[turn]
                requests.append(self.start(keys[index], ids[index]))
                self.batcher.round()  # they join at different steps
            self.finish(settle)
            for index, request in enumerate(requests):
                replies[index].append(self.ids(request))
                ids[index] += replies[index][-1]
        return replies

    def answer(self, way: str) -> Any:
        """The replies by way."""
        match way:
            case "cold":
                return [self.talk(talk, cold=True) for talk in self._talks]
            case "warm":
                return [self.talk(talk) for talk in self._talks]
            case "warm at once":
                return [self.talk(talk, settle=False) for talk in self._talks]
            case "after a cancel":
                return [self.talk(talk, cancel=True) for talk in self._talks]
            case "together":
                return self.together(settle=True)
            case "together at once":
                return self.together(settle=False)
            case "interleaved":
                return self._interleaved()
            case "drawn alone":
                return self._drawn(alone=True)
            case "drawn together":
                return self._drawn(alone=False)
        assert way == "after eviction"
        self.begin_again(self.batcher._limits.max_length + 16)  # hardly a block beside the rows
        return self.together(settle=True)

    def forget(self) -> int:
        """Release every session; returns the cache memory still in use."""
        for key in range(self._key + 1):
            self.batcher.handle({"op": "release", "key": key})
        return self.batcher.used_bytes

    def _interleaved(self) -> list[list[list[int]]]:
        """The first two talks, turn about."""
        keys, ids = (self.key(), self.key()), ([], [])  # type: ignore[var-annotated]
        replies: list[list[list[int]]] = [[], []]
        for turn in range(len(self._talks[0])):
            for side in (0, 1):
                ids[side].extend(self._talks[side][turn])
                request = self.start(keys[side], list(ids[side]))
                self.finish()
                replies[side].append(self.ids(request))
                ids[side].extend(replies[side][-1])
        return replies

    def _drawn(self, alone: bool) -> list[list[int]]:
        requests = []
        for seed, talk in enumerate(self._talks):
            requests.append(self.start(self.key(), talk[0], seed=seed, temperature=1.0))
            if alone:
                self.finish()
        self.finish()
        return [self.ids(request) for request in requests]


def main() -> None:
    """Read settings, print ways."""
    settings = json.load(sys.stdin)
    runner = Runner(Path(settings["bundle"]), settings["engine"], settings["talks"], settings["new_tokens"])
    found = {way: runner.answer(way) for way in settings["ways"]}
    sys.stdout.write("\n" + json.dumps({**found, "used": runner.forget()}) + "\n")


if __name__ == "__main__":
    main()
