"""Models of `benchmarks/serving.py`: a converted one, or the demo's architecture with random weights."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hf_folder import write_hf_folder

# The demo's decoder, as the house rules measured it, with a context long enough for the questions about history.
DEMO: dict[str, Any] = {
    "family": "llama",
    "hidden_size": 256,
    "layers": 6,
    "heads": 8,
    "kv_heads": 4,
    "intermediate_size": 704,
    "vocab_size": 4096,
    "max_length": 2048,
    "norm": "rmsnorm",
    "norm_eps": 1e-5,
    "positions": "rotary",
    "activation": "swiglu",
    "tied_head": True,
    "dtype": "float32",
}
_TEXTS = ("hello, my name is Maria and my card is lost.", "your account 1234 holds 50 euro. Please wait.") * 8


def prepare(source: str, folder: Path) -> None:
    """Write `bundle` and, for the peer, `hf` of a model into `folder`; what is there already stays.

    Args:
        source: "demo", or a Hugging Face folder or GGUF file.
        folder: to write to.
    """
    if (folder / "ready").exists():
        return
    from trainer.convert import convert
    from trainer.export.bundle import export_bundle

    checkpoint = _random(folder) if source == "demo" else convert(Path(source), folder / "checkpoint")
    export_bundle(checkpoint, folder / "bundle", formats=["mindir", "onnx"])
    write_hf_folder(checkpoint, folder / "hf")
    (folder / "ready").touch()


def _random(folder: Path) -> Any:
    import safetensors.numpy

    from evalkit.bundle import ModelSpec, TokenizerSpec
    from evalkit.canonical import sha256_text
    from trainer.checkpoint import Probe, RunFiles, read_checkpoint
    from trainer.data.tokenizer import BOS_ID, CHAT_TEMPLATE, END_ID, train_tokenizer
    from trainer.model.decoder import CausalLM

    tokenizer = train_tokenizer(_TEXTS, vocab_size=360).to_str(pretty=True)
    spec = ModelSpec(**DEMO, parameters=1)
    parameters = {parameter.name: parameter.shape for parameter in CausalLM(spec).get_parameters()}
    count = sum(int(np.prod(shape)) for shape in parameters.values())
    spec = spec.model_copy(update={"parameters": count})
    random = np.random.default_rng(2024)
    weights = {
        name: (random.normal(0, 0.06, shape) if len(shape) == 2 else np.ones(shape)).astype(np.float32)
        for name, shape in parameters.items()
    }
    ids = random.integers(6, spec.vocab_size, (2, 16), dtype=np.int32)
    positions = np.tile(np.arange(16, dtype=np.int32), (2, 1))
    counts = io.BytesIO()
    np.savez(counts, counts=np.ones(spec.vocab_size, np.int64))
    files = RunFiles(
        name="demo-random",
        model=spec,
        tokenizer=TokenizerSpec(
            sha256=sha256_text(tokenizer), prefix_token=BOS_ID, end_token=END_ID, chat_template=CHAT_TEMPLATE
        ),
        config={},
        tokenizer_json=tokenizer.encode(),
        token_counts=counts.getvalue(),
        word_counts=gzip.compress(b"hello\t1\n", mtime=0),
        probe=Probe(ids, np.roll(ids, -1, 1), positions, np.ones_like(ids)),
    )
    files.write(folder / "checkpoint", safetensors.numpy.save(weights), training={})
    return read_checkpoint(folder / "checkpoint")
