"""Configurations with a value of another type or size: one line that names the file, or a model, never a traceback."""

import copy
import json
import shutil

import pytest
import yaml

from evalkit.errors import InputError
from tests.trainer.convert.sources import mindformers_names, small_spec, small_weights, write_gpt2
from tests.trainer.convert.test_mindformers import write
from trainer.convert.folder import read_folder

WRONG = (None, "x", -1, 0, 1.5, [], [1], {"a": 1}, True, 10**12)
MORE = {
    "config.json": [
        "architectures",
        "rope_parameters",
        "rope_scaling",
        "head_dim",
        "sliding_window",
        "num_layers",
        "n_inner",
    ],
    "tokenizer_config.json": ["chat_template", "add_bos_token", "bos_token", "eos_token"],
    "predict.yaml": [
        "use_interleaved_weight_layout_mlp",
        "use_contiguous_weight_layout_attention",
        "moe_config",
        "max_position_embedding",
        "ffn_dim_multiplier",
        "multiple_of",
        "architectures",
    ],
}


@pytest.fixture(params=["llama", "gpt2", "mindformers"])
def folder(request, tmp_path, shared_data):
    if request.param == "gpt2":
        spec = small_spec("gpt2")
        return write_gpt2(tmp_path / "m", spec, small_weights(spec))
    if request.param == "mindformers":
        spec = small_spec("llama", kv_heads=2)
        return write(
            tmp_path / "m", spec, mindformers_names(small_weights(spec), "legacy"), form="safetensors"
        )
    source = shared_data / "models" / "stories260K" / "hf"
    shutil.copytree(source, tmp_path / "m", copy_function=shutil.copyfile)
    (tmp_path / "m").chmod(0o755)
    return tmp_path / "m"


def test_no_value_gives_a_traceback(folder):
    refused = 0
    for name, more in MORE.items():
        file = folder / name
        if not file.is_file():
            continue
        load, dump = (yaml.safe_load, yaml.safe_dump) if name.endswith("yaml") else (json.loads, json.dumps)
        whole = load(file.read_text())
        inner = whole["model"]["model_config"] if name.endswith("yaml") else whole
        for key in dict.fromkeys([*inner, *more]):
            for value in WRONG:
                changed = copy.deepcopy(whole)
                part = changed["model"]["model_config"] if name.endswith("yaml") else changed
                part[key] = value
                if key in ("ffn_dim_multiplier", "multiple_of"):
                    part.pop("intermediate_size", None)
                file.write_text(dump(changed))
                try:
                    read_folder(folder)
                except InputError as error:
                    refused += 1
                    assert len(str(error).splitlines()) == 1 and str(folder) in str(error)
        file.write_text(dump(whole))
    assert refused > 50
    read_folder(folder)
