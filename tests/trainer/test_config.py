"""The configuration file."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from evalkit.errors import InputError
from tests.trainer.fixtures import CONFIG
from trainer.config import load_config
from trainer.schedule import learning_rate

CONTRACT = """\
version: 1
name: banking_candidate
seed: 2024
out: runs/train/candidate
model: {family: llama, hidden_size: 96, layers: 3, heads: 4, kv_heads: 4, max_length: 256, tied_head: true, dropout: 0.0}
tokenizer: {train: {vocab_size: 512}}            # or {file: tokenizer.json}
data: {train: [train.jsonl], validation: [validation.jsonl], loss_on: assistant, sequence_length: 256, packing: true, clean: default}
optimizer: {name: adamw, learning_rate: 3.0e-3, schedule: cosine, warmup_steps: 100, weight_decay: 0.01, clip_norm: 1.0}
precision: {level: O0, loss_scale: {initial: 65536, factor: 2, window: 1000}}
steps: 500
batch_size: 16
accumulation: 1
parallel: {data: 1, model: 1, pipeline: 1, micro_batches: 1, optimizer_shard: false, recompute: none}
checkpoints: {every: 100, keep_last: 3, keep_best: perplexity/token}
evaluation: {every: 100, on_loss_scale_drop: true}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_of_the_contract_is_read(tmp_path):
    config = load_config(write(tmp_path, CONTRACT))
    spec = config.model.spec(512)
    assert spec.parameters == 381_600 and spec.intermediate_size == 256 and spec.head_size == 24
    assert (spec.norm, spec.positions, spec.activation, spec.bias) == ("rmsnorm", "rotary", "swiglu", False)


def test_the_gpt2_family_has_its_own_defaults(tmp_path):
    text = CONTRACT.replace("family: llama", "family: gpt2")
    spec = load_config(write(tmp_path, text)).model.spec(512)
    assert (spec.norm, spec.positions, spec.activation, spec.bias) == ("layernorm", "learned", "gelu", True)
    assert spec.intermediate_size == 384


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parallel": {"data": 2}}, r"parallel.data: 2 isn't supported in this version .*; set it to 1"),
        ({"parallel": {"recompute": "full"}}, r"parallel.recompute: 'full' isn't supported"),
        ({"precision": {"level": "O2"}}, r"precision.level: 'O2' isn't supported"),
        (
            {"evaluation": {"every": 5, "scenario": "s.yaml"}},
            r"evaluation.scenario: 's.yaml' isn't .*leave it out",
        ),
        ({"stepz": 5}, r"stepz: unknown key"),
        ({"steps": "many"}, r"steps: .*\(got 'many'\)"),
        ({"steps": None}, r"steps: "),
        ({"optimizer": {"learning_rate": 0.01, "warmup_steps": 12}}, r"warmup_steps 12 isn't below steps 12"),
        ({"data": {"train": [], "sequence_length": 48}}, r"data.train: "),
        (
            {"data": {"train": ["a"], "sequence_length": 65}},
            r"sequence_length 65 is above model.max_length 64",
        ),
        ({"data": {"train": ["a"], "sequence_length": 48}}, r"evaluation needs data.validation"),
        ({"evaluation": None}, r"keep_best needs evaluation.every"),
        (
            {"tokenizer": {"train": {"vocab_size": 300}, "file": "t"}},
            r"tokenizer: give exactly one of train and file",
        ),
        ({"tokenizer": {"train": {"vocab_size": 100}}}, r"tokenizer.train.vocab_size: "),
        (
            {"model": {"family": "llama", "hidden_size": 18, "layers": 1, "heads": 4, "max_length": 64}},
            r"isn't a multiple of",
        ),
        (
            {"model": {"family": "llama", "hidden_size": 12, "layers": 1, "heads": 4, "max_length": 64}},
            r"even head size",
        ),
        ({"version": 2}, r"version: "),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path, change, message):
    content = {**yaml.safe_load(CONFIG.replace("1.0e-2", "0.01")), **change}
    content = {key: value for key, value in content.items() if value is not None}
    with pytest.raises(
        InputError, match=rf"config\.yaml:\d+: {message}|config\.yaml:\d+: .*{message}"
    ) as caught:
        load_config(write(tmp_path, yaml.safe_dump(content, sort_keys=False)))
    assert "\n" not in str(caught.value)


def test_the_learning_rate_warms_up_and_falls():
    rates = [learning_rate(step, peak=1.0, warmup_steps=10, steps=110) for step in range(1, 111)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert max(rates) == rates[9] == 1.0 and rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert learning_rate(1, peak=1.0, warmup_steps=0, steps=1) == pytest.approx(0.1)
