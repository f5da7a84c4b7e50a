"""What `evalkit cache` shows."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalkit.cache.store import LIMIT_BYTES, CacheUnusableError, ModelShare, ResultCache, cache_file
from evalkit.errors import InputError


@dataclass(frozen=True)
class Overview:
    """The result cache as it is.

    Attributes:
        path: of its file, whether there is one or not.
        limit_bytes: of what is stored; beyond it the least recently used entries go.
        models: what is stored, by model.
    """

    path: Path
    limit_bytes: int
    models: tuple[ModelShare, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "path": str(self.path),
            "entries": sum(share.entries for share in self.models),
            "bytes": sum(share.bytes for share in self.models),
            "limit_bytes": self.limit_bytes,
            "models": [asdict(share) for share in self.models],
        }

    def lines(self) -> list[str]:
        """For people."""
        total = self.to_dict()
        shown = [f"result cache: {self.path}"]
        shown += [
            f"model {share.model_digest[:12]}: {share.entries} batches, {_mib(share.bytes)} MiB"
            for share in self.models
        ]
        return [
            *shown,
            f"total: {total['entries']} batches, {_mib(total['bytes'])} of {_mib(self.limit_bytes)} MiB",
        ]


def overview() -> Overview:
    """Look into the result cache; nothing is created where there is none.

    Raises:
        InputError: it can't be used.
    """
    path = cache_file()
    shares: list[ModelShare] = []
    if path.exists():
        try:
            with ResultCache(path) as cache:
                shares = cache.shares()
        except CacheUnusableError as error:
            raise InputError(f"{path}: {error}") from None
    return Overview(path, LIMIT_BYTES, tuple(shares))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"
