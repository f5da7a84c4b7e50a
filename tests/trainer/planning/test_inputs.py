"""What `trainer memory` reads: a plan, a config.json, a training configuration; and what it refuses."""

import json
import os

import pytest

from evalkit.errors import InputError
from trainer.planning.inputs import read_memory_file
from trainer.planning.memory_run import plan_memory
from trainer.planning.parameters import total_parameters

PLAN = """\
version: 1
name: plan
model: {hidden_size: 64, layers: 4, heads: 4, intermediate_size: 128, vocab_size: 512}
training:
  sequence_length: 128
  strategy: {pipeline: 2, micro_batches: 4}
device: {memory_gib: 8}
"""
QWEN = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip

GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip


def test_a_plan_and_changes_to_it(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    plan, shape = read_memory_file(tmp_path / "plan.yaml")
    assert plan.training.strategy.pipeline == 2 and shape.kv_head_count == 4
    changes = (
        "training.strategy.model=2",
        "training.strategy.recompute={segments: 2}",
        "device.hccl_buffer_mib=100",
    )
    plan, _ = read_memory_file(tmp_path / "plan.yaml", changes)
    assert plan.training.strategy.model == 2 and plan.training.strategy.recompute.segments == 2
    assert plan.device.hccl_buffer_mib == 100 and plan.device.memory_gib == 8


def test_a_hugging_face_configuration_by_file_folder_or_reference(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "plan.yaml").write_text(PLAN.replace("{hidden_size", "{config: config.json} # {hidden_size"))
    shapes = [
        read_memory_file(path)[1] for path in (tmp_path, tmp_path / "config.json", tmp_path / "plan.yaml")
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    assert total_parameters(shapes[0]) == 7_615_616_512  # with the biases that no key of the file names


def test_gpt2_and_its_tied_head(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    assert total_parameters(read_memory_file(tmp_path)[1]) == 124_439_808


def test_a_training_configuration_is_planned_as_it_trains(training_folder):
    plan, shape = read_memory_file(training_folder / "config.yaml", ("training.strategy.recompute=full",))
    assert plan.training.gradient_type == "full_fp32" and plan.training.step_copy_bytes == 4
    assert plan.training.strategy.micro_batch_size == 4 and plan.training.strategy.recompute == "full"
    assert shape.vocab_size == 300 and total_parameters(shape) == 12_560


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.sequence_length=1000000000000000000000", "training.sequence_length: .* 134217728"),
        ("model.hidden_size=1000000000000", "model.hidden_size: .* 16777216"),
        ("training.strategy.micro_batch_size=1000000000000", "micro_batch_size: .* 16777216"),
        ("device.memory_gib=1e30", "device.memory_gib: .* 1048576"),
        ("device.workspace_mib=1e30", "device.workspace_mib: "),
    ],
)
def test_a_number_beyond_any_machine_is_one_line(tmp_path, change, words):
    (tmp_path / "plan.yaml").write_text(PLAN)
    with pytest.raises(InputError, match=words) as caught:
        read_memory_file(tmp_path / "plan.yaml", (change,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hidden_size: 16", "hidden_size: 1000000000000", "hidden_size|intermediate_size"),
        ("hidden_size: 16", "hidden_size: 16, vocab_size: 1000000000000", "vocab_size"),
    ],
)
def test_a_training_configuration_beyond_any_machine_is_one_line(training_folder, tmp_path, old, new, words):
    text = (training_folder / "config.yaml").read_text()
    assert old in text
    (tmp_path / "config.yaml").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=words) as caught:
        read_memory_file(tmp_path / "config.yaml")
    assert "\n" not in str(caught.value)


def test_numbers_that_cant_be_meant_together_are_one_line(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    changes = ("training.sequence_length=100000000", "training.flash_attention=false")
    with pytest.raises(InputError, match=r"GiB on one rank can't be meant, \d+% of it activations"):
        plan_memory(tmp_path / "plan.yaml", changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.strategy.modell=2", "training.strategy.modell"),
        ("training.strategy", "FIELD=VALUE"),
        ("name.x=2", "no fields"),
        ("training.sequence_length=long", "training.sequence_length"),
        ("device.memory_gib=[", "isn't a YAML value"),
        ("device.memory_gib=*a", "isn't a YAML value .aliases"),
        ("device.memory_gib=012", "device.memory_gib: Input should be a valid number"),
        ("device.memory_gib=true", "device.memory_gib: Input should be a valid number"),
        ("training.strategy.pipeline=true", "training.strategy.pipeline: Input should be a valid integer"),
        ("inference={sequences: 1, length: 8}", "exactly one of training and inference"),
    ],
)
def test_a_wrong_change_is_named(tmp_path, change, words):
    (tmp_path / "plan.yaml").write_text(PLAN)
    with pytest.raises(InputError, match=words):
        read_memory_file(tmp_path / "plan.yaml", (change,))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**QWEN, "num_experts": 8}, "mixture of experts"),
        ({**QWEN, "model_type": "bert"}, "model_type 'bert'"),
        ({key: value for key, value in QWEN.items() if key != "vocab_size"}, "vocab_size: missing"),
        ({**QWEN, "num_key_value_heads": 5}, "isn't a multiple of kv_heads"),
        ({**QWEN, "hidden_size": "wide"}, "hidden_size"),
        ({**QWEN, "tie_word_embeddings": "false"}, "tied_head: Input should be a valid boolean"),
        (
            {**QWEN, "model_type": "llama", "attention_bias": "no"},
            "qkv_bias: Input should be a valid boolean",
        ),
        ({**GPT2, "n_embd": "wide"}, "hidden_size: Input should be a valid integer"),
        ({**GPT2, "n_embd": None}, "hidden_size: Input should be a valid integer"),
        ({**QWEN, "num_hidden_layers": True}, "layers: Input should be a valid integer"),
        ({**QWEN, "vocab_size": "152064"}, "vocab_size: Input should be a valid integer"),
    ],
)
def test_a_configuration_that_cannot_be_counted_is_refused(tmp_path, config, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=words):
        read_memory_file(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("device:", "devices:", "plan.yaml:7: devices: unknown key"),
        ("pipeline: 2", "pipeline: 0", "plan.yaml:6"),
        ("pipeline: 2", "pipeline: 2, interleave: 2, schedule: gpipe", "interleave needs"),
        ("layers: 4", "layers: four", "plan.yaml:3"),
        ("layers: 4", "layers: true", "plan.yaml:3: model.layers: .*got [Tt]rue"),
        ("layers: 4", 'layers: "4"', "plan.yaml:3: model.layers: .*got '4'"),
        ("layers: 4", "layers: 4.0", "plan.yaml:3: model.layers: .*got 4.0"),
        ("pipeline: 2", "pipeline: true", "plan.yaml:6: training.strategy.pipeline: .*got [Tt]rue"),
        ("pipeline: 2", "pipeline: 2, layers_per_stage: [3, true]", "layers_per_stage.1: .*got [Tt]rue"),
        ("version: 1", "version: true", "plan.yaml:1: version: a whole number is needed"),
        ("version: 1", "version: 1.0", "plan.yaml:1: version: a whole number is needed"),
    ],
)
def test_a_wrong_plan_names_its_line(tmp_path, old, new, words):
    (tmp_path / "plan.yaml").write_text(PLAN.replace(old, new))
    with pytest.raises(InputError, match=words):
        read_memory_file(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heads: 4", "heads: 0", r"model.heads: Input should be greater than 0 \(got 0\)"),
        ("heads: 4", "haeds: 4", "model.haeds: unknown key"),
        ("heads: 4", "heads: 3", "plan.yaml:3: model: hidden_size 64 isn't a multiple of heads 3"),
        ("layers: 4, ", "", "model.layers: is required"),
    ],
)
def test_a_wrong_shape_isnt_told_as_an_unknown_key(tmp_path, old, new, message):
    (tmp_path / "plan.yaml").write_text(PLAN.replace(old, new))
    with pytest.raises(InputError, match=message):
        read_memory_file(tmp_path / "plan.yaml")


def test_a_wrong_change_of_the_shape_names_its_field(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    with pytest.raises(InputError, match=r"^--set: model.layers: Input should be greater than 0$"):
        read_memory_file(tmp_path / "plan.yaml", ("model.layers=0",))
    with pytest.raises(InputError, match=r"^--set: model: heads 4 isn't a multiple of kv_heads 3$"):
        read_memory_file(tmp_path / "plan.yaml", ("model.kv_heads=3",))


def test_a_bottomless_config_and_a_pipe_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_memory_file(tmp_path / "config.json")
    os.mkfifo(tmp_path / "plan.yaml")
    with pytest.raises(InputError, match="not a regular file"):
        read_memory_file(tmp_path / "plan.yaml")
