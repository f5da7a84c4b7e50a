"""`trainer convert`: read a model of any known format, write a checkpoint folder or a Hugging Face one."""

import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from evalkit.bundle import MANIFEST, TOKENIZER, WEIGHTS, ModelSpec, TokenizerSpec
from evalkit.canonical import sha256_bytes
from evalkit.tokenization import TextTokenizer
from trainer.checkpoint import META, Checkpoint, RunFiles, read_checkpoint
from trainer.convert.pickles import pickle_refusal
from trainer.convert.probe import conversion_probe
from trainer.convert.source import SourceModel, refusal
from trainer.convert.to_hf import write_huggingface
from trainer.model.weights import weights_bytes


def convert(source: Path, out: Path, *, name: str | None = None) -> Checkpoint:
    """Convert the model at `source` to a checkpoint folder.

    Args:
        source: a Hugging Face or MindFormers folder (or the file with its weights), a Llama-family GGUF file, or a
            llama2.c file.
        out: the checkpoint folder; must not exist.
        name: what the model is called; None: as the source is called.

    Raises:
        InputError: `out` exists, or a source that is damaged, unsafe or of another architecture.
    """
    _check_out(out)
    if _is_checkpoint(source):
        raise refusal(source, "is a checkpoint already", "export it, or convert it with --to hf")
    found = read_source(source)
    tokenizer = _tokenizer(found, source)
    files = RunFiles(
        name=name or found.name,
        model=found.model,
        tokenizer=_tokenizer_spec(found),
        config={"converted_from": found.origin},
        tokenizer_json=found.tokenizer_json,
        token_counts=None,
        word_counts=None,
        probe=conversion_probe(tokenizer, found.model.max_length),
    )
    files.write(out, weights_bytes(found.weights), training={})
    return read_checkpoint(out)


def convert_to_huggingface(source: Path, out: Path) -> ModelSpec:
    """Write the model at `source`, a checkpoint or whatever `convert` reads, as a Hugging Face folder.

    Returns:
        The architecture.

    Raises:
        InputError: as `convert`, or an architecture that Hugging Face has no class for.
    """
    _check_out(out)
    if _is_checkpoint(source):
        checkpoint = read_checkpoint(source)
        meta = checkpoint.meta
        weights = load_file(checkpoint.path / WEIGHTS)
        tokenizer_json = (checkpoint.path / TOKENIZER).read_bytes()
        write_huggingface(out, weights, meta.model, tokenizer_json, meta.tokenizer)
        return meta.model
    found = read_source(source)
    _tokenizer(found, source)
    write_huggingface(out, found.weights, found.model, found.tokenizer_json, _tokenizer_spec(found))
    return found.model


def read_source(source: Path) -> SourceModel:
    """Read a model of any format that can be converted.

    Raises:
        InputError: absent, damaged, unsafe or of another architecture.
    """
    if (source / MANIFEST).is_file():
        raise refusal(source, "is a bundle", "name the checkpoint that it was exported from")
    if source.is_dir():
        from trainer.convert.folder import read_folder

        return read_folder(source)
    if not source.is_file():
        raise refusal(
            source, "no such file or folder", "name a model folder, or a .gguf or llama2.c .bin file"
        )
    if source.suffix == ".gguf":
        from trainer.convert.gguf import read_gguf

        return read_gguf(source)
    if source.suffix == ".bin":
        from trainer.convert.llama2c import read_llama2c

        return read_llama2c(source)
    if source.suffix in (".safetensors", ".ckpt"):
        from trainer.convert.folder import read_folder
        from trainer.convert.pickles import refuse_pickle

        refuse_pickle(source)
        return read_folder(source.parent, source)
    if source.suffix in (".pt", ".pth", ".pkl"):
        raise pickle_refusal(source)
    raise refusal(
        source,
        "neither a model folder nor a .gguf, .safetensors, .ckpt or llama2.c .bin file",
        "name one of these",
    )


def _check_out(out: Path) -> None:
    if out.exists():
        raise refusal(out, "exists already", "remove it or choose another folder with --out")


def _is_checkpoint(source: Path) -> bool:
    return (source / META).is_file() or (source / "checkpoints").is_dir()


def _tokenizer_spec(found: SourceModel) -> TokenizerSpec:
    return TokenizerSpec(
        sha256=sha256_bytes(found.tokenizer_json),
        prefix_token=found.prefix_token,
        end_token=found.end_token,
        chat_template=found.chat_template,
    )


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
    for kind, token_id in (("prefix", found.prefix_token), ("end", found.end_token)):
        if token_id is not None and not 0 <= token_id < tokenizer.vocab_size:
            raise refusal(
                source,
                f"{kind} token {token_id}: the tokenizer has {tokenizer.vocab_size} tokens",
                "take an undamaged copy of the model",
            )
    return tokenizer
