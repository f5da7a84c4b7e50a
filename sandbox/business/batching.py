"""Predictions of concurrent turns, made together: one call for everything that is waiting.

On the event loop, since the work is Python and numpy under one lock: a thread would gain nothing and cost a switch each
way. A slice of it is kept so small that the loop goes on after about half a millisecond; a text too long for that is
read in a thread of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# Characters that are read at a time, an item's fixed cost included; about 0.5 ms (benchmarks/predictions.py).
SLICE_CHARACTERS = 600
_ITEM_CHARACTERS = 40


@dataclass
class _Waiting(Generic[ItemT, ResultT]):
    item: ItemT
    characters: int
    answer: "asyncio.Future[ResultT]"


class Batcher(Generic[ItemT, ResultT]):
    """Collects items from concurrent tasks and predicts them in batches, in the order in which they came.

    Attributes:
        batches: calls of the predictor so far.
        items: predictions so far.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[ItemT]], Sequence[ResultT]],
        characters: Callable[[ItemT], int],
    ) -> None:
        """Prepare.

        Args:
            predict: results of items, in their order; the result of an item must not depend on the others.
            characters: length of an item's texts, the measure of its cost.
        """
        self.batches = 0
        self.items = 0
        self._predict = predict
        self._characters = characters
        self._waiting: deque[_Waiting[ItemT, ResultT]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def predict(self, item: ItemT) -> ResultT:
        """The result of one item."""
        loop = asyncio.get_running_loop()
        characters = self._characters(item) + _ITEM_CHARACTERS
        waiting: _Waiting[ItemT, ResultT] = _Waiting(item, characters, loop.create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            # It runs after everything that is ready now, and so finds all of it waiting.
            self._worker = loop.create_task(self._work())
        return await waiting.answer

    async def _work(self) -> None:
        while batch := self._take():
            items = [waiting.item for waiting in batch]
            try:
                if batch[0].characters > SLICE_CHARACTERS:
                    results = await asyncio.to_thread(self._predict, items)
                else:
                    results = self._predict(items)
            except Exception as error:
                for waiting in batch:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
                continue
            self.batches += 1
            self.items += len(batch)
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(result)
            await asyncio.sleep(0)

    def _take(self) -> list[_Waiting[ItemT, ResultT]]:
        """The next items whose turns still want them; a long one comes alone."""
        batch: list[_Waiting[ItemT, ResultT]] = []
        room = SLICE_CHARACTERS
        while self._waiting:
            first = self._waiting[0]
            if not first.answer.done():
                if batch and first.characters > room:
                    break
                batch.append(first)
                room -= first.characters
            self._waiting.popleft()
        return batch
