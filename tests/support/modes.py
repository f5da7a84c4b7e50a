"""MindSpore's execution mode during a test module."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def pynative() -> Iterator[None]:
    """Nothing is compiled for each length of a text; graph mode has its own tests."""
    import mindspore as ms

    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)
