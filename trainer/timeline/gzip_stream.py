"""Plain or gzip bytes; of a damaged gzip file everything that can still be unpacked."""

import io
import zlib
from pathlib import Path
from typing import IO

_READ_BYTES = 1 << 18
_GZIP = 31  # zlib's window bits for a gzip header and its checksum


class GzipReader(io.RawIOBase):
    """Unpacks a gzip file. `damage` says what was wrong with it; Python's own reader gives up its last block then."""

    def __init__(self, packed: IO[bytes]) -> None:
        """Take over an open file."""
        super().__init__()
        self.damage = ""
        self._packed = packed
        self._unpack = zlib.decompressobj(_GZIP)
        self._ready = b""
        self._over = False

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, target) -> int:  # type: ignore[no-untyped-def] # the buffer protocol has no type in 3.11
        """Fill the buffer with the next unpacked bytes; 0 at the end."""
        while not self._ready and not self._over:
            self._ready = self._next()
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _next(self) -> bytes:
        data = self._unpack.unconsumed_tail or self._unpack.unused_data
        if self._unpack.eof:
            # Another member may follow; zeros are padding.
            if not data.strip(b"\0"):
                data = self._packed.read(_READ_BYTES)
            if not data.strip(b"\0"):
                self._over = True
                return b""
            self._unpack = zlib.decompressobj(_GZIP)
        if not data:
            data = self._packed.read(_READ_BYTES)
        if not data:
            self._over = True
            self.damage = "the gzip stream ends early"
            return b""
        try:
            return self._unpack.decompress(data, 1 << 20)
        except zlib.error as error:
            self._over = True
            self.damage = f"the gzip stream is damaged ({error})"
            return b""

    def close(self) -> None:
        """Close the packed file too."""
        self._packed.close()
        super().close()


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a plain or gzip file; which of the two is told by its first bytes, not by its name."""
    stream = path.open("rb")
    magic = stream.read(2)
    stream.seek(0)
    return io.BufferedReader(GzipReader(stream)) if magic == b"\x1f\x8b" else stream


def damage_of(stream: io.BufferedReader) -> str:
    """What was wrong with a gzip file that was read to its end; empty if nothing was."""
    return getattr(stream.raw, "damage", "")
