"""The configuration file."""

from pathlib import Path

import pytest
import yaml

from evalkit.errors import InputError
from tests.trainer.fixtures import CONFIG
from trainer.config import load_config

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
evaluation: {every: 100, on_loss_scale_drop: true, scenario: ../scenarios/banking_support.yaml}
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
        ({"parallel": {"model": 3}}, r"model.heads 4 isn't a multiple of parallel.model 3"),
        ({"parallel": {"model": 4}}, r"model.kv_heads 2 isn't a multiple of parallel.model 4"),
        (
            {"parallel": {"pipeline": 3, "micro_batches": 4}},
            r"model.layers 2 isn't a multiple of parallel.pipeline 3",
        ),
        ({"parallel": {"pipeline": 2}}, r"parallel: micro_batches 1 is below pipeline 2"),
        (
            {"parallel": {"pipeline": 2, "micro_batches": 3}},
            r"batch_size 4 isn't a multiple of parallel.micro_batches 3",
        ),
        ({"parallel": {"micro_batches": 2}}, r"micro_batches 2 needs pipeline above 1; use accumulation"),
        ({"parallel": {"enable_alltoall": True}}, r"enable_alltoall, .* concern cut models"),
        ({"parallel": {"optimizer_shard": True}}, r"optimizer_shard needs data above 1"),
        ({"parallel": {"recompute": "some"}}, r"parallel.recompute"),
        ({"parallel": {"recompute": {"segments": 3}}}, r"layers of a stage aren't a multiple of"),
        ({"parallel": {"data": 0}}, r"parallel.data: "),
        ({"precision": {"level": "O1"}}, r"precision.level: "),
        ({"precision": {"loss_scale": {"initial": 8, "max": 4}}}, r"initial 8 isn't within min 1 and max 4"),
        ({"precision": {"level": "O2"}, "debug": True}, r"debug needs precision.level O0"),
        ({"optimizer": {"learning_rate": 0.01, "no_decay": ["heads"]}}, r"optimizer.no_decay.0: "),
        ({"on_nan": "ignore"}, r"on_nan: "),
        ({"seed": 2**32}, r"seed: "),
        ({"seed": -1}, r"seed: "),
        (
            {"model": {"family": "llama", "hidden_size": 16, "layers": 10**9, "heads": 4, "max_length": 64}},
            r"model.layers: ",
        ),
        ({"stepz": 5}, r"stepz: unknown key"),
        ({"steps": "many"}, r"steps: .*\(got 'many'\)"),
        ({"steps": True}, r"steps: .*\(got [Tt]rue\)"),
        ({"steps": 12.0}, r"steps: .*\(got 12.0\)"),
        ({"batch_size": "4"}, r"batch_size: .*\(got '4'\)"),
        ({"optimizer": {"learning_rate": True}}, r"learning_rate: .*\(got [Tt]rue\)"),
        ({"debug": 1}, r"debug: .*\(got 1\)"),
        ({"version": True}, r"version: a whole number is needed"),
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
