"""Leaving a training as it was: random numbers and modes are put back after an evaluation, whatever happened in it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from evalkit.backends.runtime import mindspore_session


@contextmanager
def untouched(network: Any) -> Iterator[None]:
    """Save the state that an evaluation could disturb, and restore it at the end.

    It covers the generators of Python, numpy and MindSpore, the training flag of every cell below `network`, and
    MindSpore's execution mode. Weights, optimizer, loss scale, gradients and the data pipeline aren't saved: an
    evaluation has no way to them, which the tests compare bit by bit.
    """
    with mindspore_session() as mindspore:
        mode = mindspore.get_context("mode")
        cells = [] if network is None else [cell for _, cell in network.cells_and_names()]
        flags = [(cell, cell.training) for cell in cells]
        python_state, numpy_state = random.getstate(), np.random.get_state()
        framework_state = mindspore.get_rng_state().asnumpy().copy()
        try:
            yield
        finally:
            for cell, training in flags:
                if cell.training != training:
                    cell.add_flags(training=training)
            if mindspore.get_context("mode") != mode:
                mindspore.set_context(mode=mode)
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            mindspore.set_rng_state(mindspore.Tensor(framework_state))
