"""Export: a checkpoint becomes a bundle folder, whole or not at all."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalkit.bundle import (
    MANIFEST,
    SCHEMA,
    TOKEN_COUNTS,
    TOKENIZER,
    WEIGHTS,
    WORD_COUNTS,
    Bundle,
    FileSpec,
    load_bundle,
    manifest_digest,
    model_digest,
)
from evalkit.canonical import sha256_file
from evalkit.files import folder_atomic, write_json_atomic
from trainer.checkpoint import Checkpoint
from trainer.export.options import TOLERANCE, Bucket, ExportOptions
from trainer.export.roles import write_graphs
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights


def export_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    formats: Sequence[str] = ("mindir",),
    buckets: Sequence[Bucket] = (),
    tolerance: float = TOLERANCE,
    attention_window: int | None = None,
    name: str | None = None,
    logits: bool = False,
) -> Bundle:
    """Write the bundle `out`.

    The graphs are loaded again from the file and compared with the checkpoint before anything is published; the
    finished folder passes `load_bundle`.

    Args:
        checkpoint: what to export.
        out: the bundle folder; must not exist.
        formats: mindir (always needed), onnx, air (on an Ascend device, with buckets).
        buckets: static shapes to write beside the dynamic graphs.
        tolerance: how far a graph's worst log-probability may lie from the checkpoint's, in nats.
        attention_window: how far back a token sees, itself included; None keeps the checkpoint's own. Another window
            makes another model with another digest.
        name: the bundle's name; None keeps the checkpoint's.
        logits: export a graph of raw logits too, in every format; it holds the weights once more.

    Raises:
        InputError: `out` exists, the format isn't possible here, or parity is worse than allowed.
    """
    meta = checkpoint.meta
    spec = meta.model
    if attention_window is not None:
        spec = spec.model_copy(update={"attention_window": attention_window})
    options = ExportOptions(formats, buckets, tolerance, logits)
    options.check(spec)
    model = CausalLM(spec)
    load_weights(model, checkpoint.path / WEIGHTS)
    model.set_train(False)
    with folder_atomic(out) as staging:
        for file in (WEIGHTS, TOKENIZER, TOKEN_COUNTS, WORD_COUNTS):
            if file in meta.files:
                shutil.copyfile(checkpoint.path / file, staging / file)
        graphs = write_graphs(staging, model, spec, checkpoint.probe, options)
        files = {
            path.relative_to(staging).as_posix(): FileSpec(
                sha256=sha256_file(path), bytes=path.stat().st_size
            )
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        }
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "name": name or meta.name,
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "model_digest": model_digest(files[WEIGHTS].sha256, files[TOKENIZER].sha256, spec),
            "model": spec.model_dump(),
            "tokenizer": meta.tokenizer.model_dump(),
            "graphs": {role: graph.model_dump() for role, graph in graphs.roles.items()},
            "files": {path: file.model_dump() for path, file in files.items()},
            "training": meta.training or None,
            "parity": {role: result.model_dump() for role, result in graphs.parity.items()},
        }
        content["manifest_sha256"] = manifest_digest(content)
        write_json_atomic(staging / MANIFEST, content)
        load_bundle(staging)
    return load_bundle(out)
