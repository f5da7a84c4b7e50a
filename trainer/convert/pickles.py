"""Files that hold pickles: refused before anybody could unpickle them."""

from pathlib import Path

from trainer.convert.source import refusal

# PyTorch writes zip archives around a pickle since 1.6, bare pickles (protocol 2 and later) before.
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


def refuse_pickle(file: Path) -> None:
    """Refuse a file whose first bytes are a pickle's.

    Raises:
        InputError: it is one.
    """
    with file.open("rb") as stream:
        start = stream.read(len(_ZIP))
    if start == _ZIP or start[:1] == _PICKLE:
        raise pickle_refusal(file)


def pickle_refusal(file: Path) -> Exception:
    """What a user reads who names a pickle."""
    return refusal(
        file,
        "a pickle, and unpickling runs code",
        "convert it to safetensors where you trust it and name its folder",
    )
