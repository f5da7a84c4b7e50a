"""What decides the answers of a model, so that another model's, another machine's or older code's are never taken for them.

The question itself (token ids, targets, positions, segments, in their shape) is the other half of a key, see
`evalkit.cache.backend`. It holds what the texts and the window policy come to, so neither is named here.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evalkit.backends.choice import RUNTIMES, SCORE_ROLES, BackendName, backend_class
from evalkit.bundle import Bundle
from evalkit.canonical import sha256_text
from evalkit.runs.code_version import code_digests

_SCHEMA = "evalkit.result-cache/1"


def scoring_identity(name: BackendName, bundle: Bundle) -> dict[str, Any] | None:
    """Everything that decides what a bundle's graph answers on this machine; None where some of it isn't known.

    Args:
        name: of the backend.
        bundle: a verified one.
    """
    identity = {
        "model_digest": bundle.model_digest,
        "tokenizer_sha256": bundle.manifest.tokenizer.sha256,
        "graph_sha256": bundle.graph_digests.get(SCORE_ROLES[name]),
        "backend": name,
        "precision": backend_class(name).precision,
        "code_sha256": code_digests()["evalkit"],
        "runtime": _version(RUNTIMES[name]),
        "processor": _processor(),
    }
    if None in identity.values():
        return None
    # Results are equal to the bit on one machine; how work is shared out between processors is part of that.
    machine = {"system": platform.system(), "processors": _usable_processors()}
    return {"schema": _SCHEMA, **identity, **machine}


def _version(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def _usable_processors() -> int | None:
    # Not every system can tell which processors a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    """The processor by what it can do: libraries choose their kernels by that."""
    facts = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    facts += sorted({line for line in lines if line.split("\t")[0].rstrip(": ") in wanted})
    return sha256_text("\n".join(facts))
