"""Back to Hugging Face: a folder that transformers loads."""

from pathlib import Path

import numpy as np
import orjson
from safetensors.numpy import save

from evalkit.bundle import ModelSpec, TokenizerSpec
from evalkit.files import folder_atomic
from trainer.convert.architecture import write_config
from trainer.convert.folder import CONFIG
from trainer.convert.hf_tokenizer import TOKENIZER_CONFIG, TOKENIZER_FILE, framing_tokenizer, tokenizer_config
from trainer.convert.mapping import from_ours
from trainer.convert.names import Format
from trainer.convert.source import Weights
from trainer.convert.weight_files import SINGLE

_FORMATS = {"llama": Format.HF_LLAMA, "gpt2": Format.HF_GPT2}


def write_huggingface(
    out: Path, weights: Weights, model: ModelSpec, tokenizer_json: bytes, tokenizer: TokenizerSpec
) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json; all or nothing.

    Read again, the folder gives the same weights bit for bit, and the same token ids.

    Args:
        out: the folder; must not exist.
        weights: by our names.
        model: the architecture.
        tokenizer_json: a `tokenizers` file.
        tokenizer: the ids that frame a text, and the chat template.

    Raises:
        InputError: `out` exists, or Hugging Face has no class that computes this architecture.
    """
    config = write_config(out, model)
    config |= {"bos_token_id": tokenizer.prefix_token, "eos_token_id": tokenizer.end_token}
    tensors = from_ours(_FORMATS[model.family], weights, model)
    with folder_atomic(out) as staging:
        (staging / CONFIG).write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
        # transformers loads only files that name their framework's layout.
        ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
        (staging / SINGLE).write_bytes(save(ordered, metadata={"format": "pt"}))
        (staging / TOKENIZER_FILE).write_bytes(framing_tokenizer(tokenizer_json, tokenizer.prefix_token))
        (staging / TOKENIZER_CONFIG).write_bytes(
            tokenizer_config(tokenizer_json, tokenizer, model.max_length)
        )
