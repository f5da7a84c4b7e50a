"""A bundle of stories260K, a real model that nobody here trained, made from its Hugging Face folder."""

import gzip
import io
from pathlib import Path

import numpy as np

from evalkit.bundle import Bundle, ModelSpec, TokenizerSpec
from evalkit.canonical import sha256_file

SPEC = ModelSpec(
    family="llama",
    hidden_size=64,
    layers=5,
    heads=8,
    kv_heads=4,
    intermediate_size=172,
    vocab_size=512,
    max_length=512,
    norm="rmsnorm",
    norm_eps=1e-5,
    positions="rotary",
    activation="swiglu",
    tied_head=True,
    parameters=260032,
    dtype="float32",
)


def export_stories(shared_data: Path, folder: Path) -> Bundle:
    """Export the model to `folder`/bundle; the training frequencies are made up."""
    from trainer.checkpoint import Probe, RunFiles, read_checkpoint
    from trainer.export.bundle import export_bundle

    source = shared_data / "models" / "stories260K" / "hf"
    ids = np.arange(3, 67, dtype=np.int32).reshape(1, -1)
    counts = io.BytesIO()
    np.savez(counts, counts=np.arange(512, 0, -1, dtype=np.int64))
    files = RunFiles(
        name="stories260K",
        model=SPEC,
        tokenizer=TokenizerSpec(
            sha256=sha256_file(source / "tokenizer.json"), prefix_token=1, end_token=None, chat_template=None
        ),
        config={},
        tokenizer_json=(source / "tokenizer.json").read_bytes(),
        token_counts=counts.getvalue(),
        word_counts=gzip.compress(b"once\t5\nupon\t5\na\t9\ntime\t3\nshe\t4\nwas\t4\n", mtime=0),
        probe=Probe(
            token_ids=ids,
            targets=np.roll(ids, -1, axis=1),
            positions=np.arange(64, dtype=np.int32).reshape(1, -1),
            segments=np.ones((1, 64), dtype=np.int32),
        ),
    )
    files.write(folder / "checkpoint", (source / "model.safetensors").read_bytes(), {})
    return export_bundle(read_checkpoint(folder / "checkpoint"), folder / "bundle")
