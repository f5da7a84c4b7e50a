"""Folders that Hugging Face transformers itself wrote: GPT-2, sharded Llama, bfloat16."""

import json
import os
import subprocess

import numpy as np
import pytest

from tests.trainer.convert.sources import write_tokenizer
from tests.trainer.reference import forward, log_softmax
from trainer.convert.folder import read_folder

_SCRIPT = """
import json, sys
import torch
from transformers import (
    AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast,
)
torch.manual_seed(1)
out, tokenizer_file = sys.argv[1:]
gpt2 = dict(vocab_size=280, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
llama = dict(
    vocab_size=280, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=64, initializer_range=0.3,
)
models = {
    "gpt2": (GPT2LMHeadModel(GPT2Config(**gpt2)), {}),
    "sharded": (LlamaForCausalLM(LlamaConfig(**llama)), {"max_shard_size": "20KB"}),
    "bfloat16": (
        LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=True, rope_theta=5e5)).to(torch.bfloat16), {},
    ),
}
ids = torch.tensor([[1, *range(20, 40)]])
answer = {}
for name, (model, options) in models.items():
    model.save_pretrained(f"{out}/{name}", **options)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file, bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.save_pretrained(f"{out}/{name}")
    loaded = AutoModelForCausalLM.from_pretrained(f"{out}/{name}", dtype=torch.float32).eval()
    with torch.no_grad():
        logprobs = torch.log_softmax(loaded(ids).logits[0].double(), -1)
    answer[name] = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
print(json.dumps(answer))
"""


@pytest.mark.slow
def test_what_transformers_saves_is_read_as_it_computes(peers_python, tmp_path):
    write_tokenizer(tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [peers_python, "-c", _SCRIPT, str(tmp_path), str(tmp_path / "tokenizer.json")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ids = np.array([[1, *range(20, 40)]], np.int32)
    positions = np.arange(ids.shape[1], dtype=np.int32)[None]
    for name, expected in json.loads(done.stdout.splitlines()[-1]).items():
        found = read_folder(tmp_path / name)
        assert (found.prefix_token, found.end_token) == (1, 2)
        logits = forward(found.model, found.weights, ids, positions, np.ones_like(positions))
        logprobs = log_softmax(logits)[0, np.arange(20), ids[0, 1:]]
        assert np.abs(logprobs - np.array(expected)).max() < 2e-5, name
