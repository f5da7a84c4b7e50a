"""Simplified and traditional Chinese, by OpenCC's dictionaries (extra `opencc`)."""

from collections.abc import Callable
from random import Random

from evalkit.errors import InputError


def script_converter(to: str) -> Callable[[str], str]:
    """A function that converts a text to traditional or simplified Chinese.

    Raises:
        InputError: OpenCC isn't installed.
    """
    try:
        from opencc import OpenCC
    except ImportError:
        raise InputError('OpenCC isn\'t installed; pip install "evalkit[opencc]"') from None
    converter = OpenCC("s2t" if to == "traditional" else "t2s")

    def convert(text: str) -> str:
        return str(converter.convert(text))

    return convert


def to_script(text: str, random: Random, convert: Callable[[str], str]) -> str:
    """`text` in the other script; nothing is drawn."""
    return convert(text)
