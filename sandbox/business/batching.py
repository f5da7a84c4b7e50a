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
        self._at_work = False

    async def predict(self, item: ItemT) -> ResultT:
        """The result of one item."""
        loop = asyncio.get_running_loop()
        characters = self._characters(item) + _ITEM_CHARACTERS
        waiting: _Waiting[ItemT, ResultT] = _Waiting(item, characters, loop.create_future())
        self._waiting.append(waiting)
        if not self._at_work:
            self._at_work = True
            # It runs after everything that is ready now, and so finds all of it waiting.
            loop.call_soon(self._work)
        return await waiting.answer

    def _work(self) -> None:
        batch = self._take()
        items = [waiting.item for waiting in batch]
        if batch and batch[0].characters > SLICE_CHARACTERS:
            reading = asyncio.get_running_loop().run_in_executor(None, self._predict, items)
            reading.add_done_callback(lambda read: self._answer(batch, read.result))
        else:
            self._answer(batch, lambda: self._predict(items) if items else ())

    def _answer(
        self, batch: "list[_Waiting[ItemT, ResultT]]", results_of: Callable[[], Sequence[ResultT]]
    ) -> None:
        """Hand out the results of a batch; what waits by now is next, after everything else that is ready."""
        try:
            results = results_of()
        except Exception as error:
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
        else:
            self.batches += bool(batch)
            self.items += len(batch)
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(result)
        self._at_work = bool(self._waiting)
        if self._at_work:
            asyncio.get_running_loop().call_soon(self._work)

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
