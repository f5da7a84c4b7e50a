"""Write a tiny bundle with random weights: `python -m tests.sandbox.tiny_bundle OUT`. Needs MindSpore, so it is a process."""

import gzip
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import safetensors.numpy

from evalkit.bundle import ModelSpec, TokenizerSpec
from evalkit.canonical import sha256_text
from trainer.checkpoint import Probe, RunFiles, read_checkpoint
from trainer.data.tokenizer import BOS_ID, CHAT_TEMPLATE, END_ID, train_tokenizer

TEXTS = (
    "hello, my name is Maria and my card is lost. I can not find my card.",
    "your account 1234 holds 50 euro. Please tell me your name and your account.",
    "您好，我的卡丢了。我的名字是王丽，账号是一二三四。谢谢您的帮助。",
)


def write_tiny_bundle(out: Path) -> None:
    """A two-layer model whose weights are random but large, so that its replies vary with every token of the prompt."""
    from trainer.export.bundle import export_bundle
    from trainer.model.decoder import CausalLM

    tokenizer = train_tokenizer(TEXTS * 4, vocab_size=360)
    tokenizer_json = tokenizer.to_str(pretty=True)
    spec = ModelSpec(
        family="llama",
        hidden_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate_size=64,
        vocab_size=tokenizer.get_vocab_size(),
        max_length=256,
        norm="rmsnorm",
        norm_eps=1e-5,
        positions="rotary",
        activation="swiglu",
        tied_head=True,
        parameters=1,
        dtype="float32",
    )
    random = np.random.default_rng(2024)
    weights = {
        parameter.name: (
            random.normal(0, 0.4, parameter.shape) if parameter.ndim == 2 else np.ones(parameter.shape)
        ).astype(np.float32)
        for parameter in CausalLM(spec).get_parameters()
    }
    counts = io.BytesIO()
    encoded = np.concatenate([tokenizer.encode(text).ids for text in TEXTS])
    np.savez(counts, counts=np.bincount(encoded, minlength=spec.vocab_size))
    words = "".join(f"{word}\t{count}\n" for word, count in Counter(" ".join(TEXTS).split()).items())
    ids = random.integers(6, spec.vocab_size, (2, 16), dtype=np.int32)
    probe = Probe(ids, np.roll(ids, -1, 1), np.tile(np.arange(16, dtype=np.int32), (2, 1)), np.ones_like(ids))
    files = RunFiles(
        name="tiny",
        model=spec,
        tokenizer=TokenizerSpec(
            sha256=sha256_text(tokenizer_json),
            prefix_token=BOS_ID,
            end_token=END_ID,
            chat_template=CHAT_TEMPLATE,
        ),
        config={},
        tokenizer_json=tokenizer_json.encode(),
        token_counts=counts.getvalue(),
        word_counts=gzip.compress(words.encode(), mtime=0),
        probe=probe,
    )
    with tempfile.TemporaryDirectory() as folder:
        files.write(Path(folder) / "step-0", safetensors.numpy.save(weights), training={})
        export_bundle(read_checkpoint(Path(folder) / "step-0"), out, formats=["mindir", "onnx"])


if __name__ == "__main__":
    write_tiny_bundle(Path(sys.argv[1]))
