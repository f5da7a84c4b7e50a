"""`trainer convert`: read a foreign model, write a checkpoint folder."""

import tempfile
from pathlib import Path

from evalkit.bundle import TOKENIZER, TokenizerSpec
from evalkit.canonical import sha256_bytes
from evalkit.tokenization import TextTokenizer
from trainer.checkpoint import Checkpoint, RunFiles, read_checkpoint
from trainer.convert.probe import conversion_probe
from trainer.convert.source import SourceModel, check_weights, refusal
from trainer.model.weights import weights_bytes

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def convert(source: Path, out: Path, *, name: str | None = None) -> Checkpoint:
    """Convert the model at `source` to a checkpoint folder.

    Args:
        source: a Hugging Face folder of a Llama model, or a Llama-family GGUF file.
        out: the checkpoint folder; must not exist.
        name: what the model is called; None: as the source is called.

    Raises:
        InputError: `out` exists, or a source that is damaged, unsafe or of another architecture.
    """
    if out.exists():
        raise refusal(out, "exists already", "remove it or choose another folder with --out")
    found = _read(source)
    check_weights(source, found.weights, found.model)
    tokenizer = _tokenizer(found, source)
    spec = TokenizerSpec(
        sha256=sha256_bytes(found.tokenizer_json),
        prefix_token=found.prefix_token,
        end_token=found.end_token,
        chat_template=found.chat_template,
    )
    files = RunFiles(
        name=name or found.name,
        model=found.model,
        tokenizer=spec,
        config={"converted_from": found.origin},
        tokenizer_json=found.tokenizer_json,
        token_counts=None,
        word_counts=None,
        probe=conversion_probe(tokenizer, found.model.max_length),
    )
    files.write(out, weights_bytes(found.weights), training={})
    return read_checkpoint(out)


def _read(source: Path) -> SourceModel:
    if source.is_dir():
        from trainer.convert.hf import read_huggingface

        return read_huggingface(source)
    if not source.is_file():
        raise refusal(source, "no such file or folder", "name a Hugging Face folder or a GGUF file")
    if source.suffix == ".gguf":
        from trainer.convert.gguf import read_gguf

        return read_gguf(source)
    if source.suffix in _PICKLES:
        raise refusal(
            source,
            "may be a pickle, and unpickling runs code",
            "convert it to safetensors where you trust it and name its folder",
        )
    raise refusal(source, "neither a Hugging Face folder nor a .gguf file", "name one of these")


def _tokenizer(found: SourceModel, source: Path) -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / TOKENIZER
        file.write_bytes(found.tokenizer_json)
        tokenizer = TextTokenizer.from_file(
            file,
            prefix_token=found.prefix_token,
            end_token=found.end_token,
            chat_template=found.chat_template,
        )
    if tokenizer.vocab_size > found.model.vocab_size:
        raise refusal(
            source,
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model only {found.model.vocab_size} rows",
            "tokenizer and weights belong to different models",
        )
    return tokenizer
