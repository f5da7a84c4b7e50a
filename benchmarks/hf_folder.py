"""A checkpoint of a Llama model as the Hugging Face folder that the peer loads."""

import json
import shutil
from pathlib import Path

from evalkit.bundle import TOKENIZER, WEIGHTS
from trainer.checkpoint import Checkpoint


def write_hf_folder(checkpoint: Checkpoint, out: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json into the new folder `out`."""
    model = checkpoint.meta.model
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": model.tied_head,
        "hidden_act": "silu",
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "dtype": "float32",
    }
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.max_length}
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    shutil.copyfile(checkpoint.path / TOKENIZER, out / TOKENIZER)
    # transformers asks safetensors files for the framework that they were made for.
    from safetensors.numpy import load_file, save_file

    save_file(load_file(checkpoint.path / WEIGHTS), out / "model.safetensors", metadata={"format": "pt"})
