"""Hugging Face folders: what is read, and what is refused by one line that names it."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evalkit.errors import InputError
from trainer.convert import convert
from trainer.convert.folder import read_folder


@pytest.fixture
def folder(shared_data, tmp_path) -> Path:
    """A copy of stories260K that a test may damage."""
    copy = tmp_path / "model"
    shutil.copytree(shared_data / "models" / "stories260K" / "hf", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    return copy


def change(file: Path, **values) -> None:
    content = json.loads(file.read_text())
    content.update(values)
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_weights(folder: Path, edit) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def test_the_architecture_is_read(folder):
    found = read_folder(folder)
    model = found.model
    assert (model.layers, model.hidden_size, model.heads, model.kv_heads) == (5, 64, 8, 4)
    assert (model.intermediate_size, model.vocab_size, model.max_length) == (172, 512, 512)
    assert model.tied_head and model.rope_theta == 10000.0 and model.norm_eps == 1e-5
    assert model.parameters == sum(weight.size for weight in found.weights.values())
    assert (found.prefix_token, found.end_token, found.chat_template) == (1, 2, None)


def test_older_configurations_name_theta_elsewhere(folder):
    change(folder / "config.json", rope_parameters=None, rope_theta=500000.0)
    assert read_folder(folder).model.rope_theta == 500000.0


def test_shards_equal_the_single_file(folder):
    whole = read_folder(folder).weights
    names = sorted(whole)
    shards = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for file, part in shards.items():
        save_file({name: whole[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_folder(folder).weights
    assert set(found) == set(whole) and all(np.array_equal(found[name], whole[name]) for name in whole)

    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors: missing, though the index lists it"):
        read_folder(folder)
    index["weight_map"][names[0]] = "../a.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="only safetensors files of the folder itself"):
        read_folder(folder)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_precision_weights_become_float32(folder, kind):
    whole = read_folder(folder).weights
    if kind == "F16":
        save_file({n: w.astype(np.float16) for n, w in whole.items()}, folder / "model.safetensors")
        expected = {n: w.astype(np.float16).astype(np.float32) for n, w in whole.items()}
    else:
        halves = {n: (w.view(np.uint32) >> 16).astype("<u2") for n, w in whole.items()}
        write_bfloat16(folder / "model.safetensors", halves)
        expected = {n: (w.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, w in whole.items()}
    found = read_folder(folder).weights
    assert all(found[n].dtype == np.float32 and np.array_equal(found[n], expected[n]) for n in whole)


def write_bfloat16(file: Path, halves: dict) -> None:
    header, place = {}, 0
    for name, value in halves.items():
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [place, place + value.nbytes]}
        place += value.nbytes
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in halves.values()))


def test_the_bos_follows_the_tokenizer(folder):
    """Its configuration decides; where that says nothing, its post-processor does."""
    change(folder / "tokenizer_config.json", add_bos_token=False)
    assert read_folder(folder).prefix_token is None
    change(folder / "tokenizer_config.json", add_bos_token=None)
    assert read_folder(folder).prefix_token is None
    processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    change(folder / "tokenizer.json", post_processor=processor)
    assert read_folder(folder).prefix_token == 1


def test_a_chat_template_is_kept(folder):
    change(folder / "tokenizer_config.json", chat_template="{{ messages }}", eos_token={"content": "</s>"})
    found = read_folder(folder)
    assert found.chat_template == "{{ messages }}" and found.end_token == 2
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    change(folder / "tokenizer_config.json", chat_template=named)
    assert read_folder(folder).chat_template == "yes"
    (folder / "chat_template.jinja").write_text("its own file")
    assert read_folder(folder).chat_template == "its own file"


def test_truncation_of_somebodys_training_is_dropped(folder):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=truncation)
    assert json.loads(read_folder(folder).tokenizer_json)["truncation"] is None


@pytest.mark.parametrize(
    ("change_to", "message"),
    [
        (
            {"architectures": ["BertForMaskedLM"]},
            "BertForMaskedLM isn't supported; an encoder predicts no next token",
        ),
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            "T5ForConditionalGeneration .* take a decoder-only model",
        ),
        ({"architectures": None, "model_type": "bert"}, "architecture bert isn't supported; an encoder"),
        ({"architectures": ["MixtralForCausalLM"]}, "a mixture of experts; take a dense"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "biases on queries, keys and values only"),
        ({"architectures": ["MistralForCausalLM"]}, "its sliding window isn't converted"),
        (
            {"architectures": ["FalconForCausalLM"]},
            "only decoders of the kinds LlamaForCausalLM and GPT2LMHeadModel",
        ),
        ({"sliding_window": 128}, "sliding_window 128; take a model that sees its whole context"),
        ({"num_local_experts": 8}, "a mixture of experts"),
        ({"hidden_act": "gelu"}, "only silu"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rotary scaling 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "'linear'"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"attention_bias": True}, "biases everywhere or nowhere"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing"),
        ({"hidden_size": "many"}, "many"),
        ({"vocab_size": 500}, "model.embed_tokens.weight: shape"),
    ],
)
def test_other_architectures_are_refused(folder, tmp_path, change_to, message):
    change(folder / "config.json", **change_to)
    with pytest.raises(InputError, match=message) as caught:
        convert(folder, tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_missing_and_surplus_weights_are_named(folder, tmp_path):
    change_weights(folder, lambda weights: weights.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.up_proj\.weight: weight is missing"):
        convert(folder, tmp_path / "out")
    weights = {"model.layers.2.mlp.up_proj.weight": np.zeros((172, 64), np.float32)}
    change_weights(folder, lambda found: found.update(weights))
    change_weights(folder, lambda found: found.update({"model.extra": np.zeros(3, np.float32)}))
    with pytest.raises(InputError, match=r"model\.extra: weight is unknown"):
        convert(folder, tmp_path / "out")


def test_undefined_weights_are_refused(folder, tmp_path):
    change_weights(folder, lambda weights: weights["model.norm.weight"].fill(np.nan))
    with pytest.raises(InputError, match=r"model\.norm\.weight: holds NaN"):
        convert(folder, tmp_path / "out")


def test_a_tied_head_may_be_stored_twice_but_not_differ(folder):
    change_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].copy()}))
    assert "lm_head.weight" not in read_folder(folder).weights
    change_weights(folder, lambda w: w["lm_head.weight"].fill(0))
    with pytest.raises(InputError, match=r"lm_head\.weight: differs from the embedding"):
        read_folder(folder)


def test_an_untied_head_is_its_own_matrix(folder, tmp_path):
    change(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"lm_head\.weight: weight is missing"):
        convert(folder, tmp_path / "out")
    change_weights(folder, lambda w: w.update({"lm_head.weight": np.ones((512, 64), np.float32)}))
    assert convert(folder, tmp_path / "out").meta.model.tied_head is False


def test_pickles_are_refused(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin: a pickle, .* convert it to safetensors"):
        convert(folder, tmp_path / "out")
    for name in ("pytorch_model.bin", "model.ckpt", "weights.safetensors"):
        for start in (b"PK\x03\x04", b"\x80\x02}q\x00."):  # PyTorch's zip archive, and a bare pickle
            (folder / name).write_bytes(start + bytes(64))
            with pytest.raises(InputError, match=r"a pickle, .* convert it to safetensors"):
                convert(folder / name, tmp_path / "out")
    (folder / "model.pt").write_bytes(b"")
    with pytest.raises(InputError, match="a pickle"):
        convert(folder / "model.pt", tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", r"config\.json:1: broken JSON"),
        ("config.json", b"[]", "not a JSON object"),
        ("model.safetensors", b"\x08\0\0\0", "not a safetensors file"),
        ("tokenizer.json", b"{}", "not a tokenizer file"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, file, content, message):
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_absent_files_are_named(folder, tmp_path, file):
    (folder / file).unlink()
    with pytest.raises(InputError, match=file):
        convert(folder, tmp_path / "out")


def test_special_tokens_that_the_tokenizer_lacks(folder):
    change(folder / "tokenizer_config.json", bos_token="<bos>")
    with pytest.raises(InputError, match=r"bos_token '<bos>' isn't in tokenizer\.json"):
        read_folder(folder)


def test_sources_that_are_neither(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"neither a model folder nor a \.gguf"):
        convert(tmp_path / "notes.txt", tmp_path / "out")
    with pytest.raises(InputError, match="no such file or folder"):
        convert(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="is a bundle; name the checkpoint"):
        convert(tmp_path / "bundle", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists already"):
        convert(tmp_path, tmp_path / "out")
