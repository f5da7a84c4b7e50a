"""MindFormers models: legacy and Mcore names, .ckpt and safetensors, its YAML configuration."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from evalkit.errors import InputError
from tests.trainer.convert.sources import mindformers_names, small_spec, small_weights, write_tokenizer
from trainer.convert import convert
from trainer.convert.folder import read_folder

YAML = """\
seed: 0
model:
  model_config:
    type: LlamaConfig
    seq_length: 48
    hidden_size: 16
    num_layers: 2
    num_heads: 4
    n_kv_heads: 2
    vocab_size: 280
    intermediate_size: {inner}
    rms_norm_eps: 1.0e-5
    theta: 10000
    extend_method: "None"
    tie_word_embeddings: {tied}
    bos_token_id: 1
    eos_token_id: 2{more}
  arch:
    type: LlamaForCausalLM
"""
TRAINING = {
    "adam_m.model.norm_out.weight": np.zeros(16, np.float32),
    "global_step": np.array([7], np.int32),
    "loss_scale": np.array(65536.0, np.float32),
    "epoch_num": np.array(1, np.int32),
    "global_batch_size": np.array(8, np.int32),
}


def write(folder, spec, tensors, *, form, more=""):
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder)
    tied = str(spec.tied_head).lower()
    (folder / "predict.yaml").write_text(YAML.format(inner=spec.intermediate_size, tied=tied, more=more))
    if form == "ckpt":
        import mindspore

        entries = [{"name": name, "data": mindspore.Tensor(value)} for name, value in tensors.items()]
        mindspore.save_checkpoint(entries, str(folder / "llama_rank_0-1_10.ckpt"))
    else:
        save_file(
            {name: np.ascontiguousarray(value) for name, value in tensors.items()},
            folder / "llama.safetensors",
        )
    return folder


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize(
    ("kind", "tied"), [("legacy", True), ("legacy", False), ("mcore", True), ("mcore", False)]
)
def test_llama_comes_back_bit_for_bit(tmp_path, form, kind, tied):
    spec = small_spec("llama", kv_heads=2, tied_head=tied)
    weights = small_weights(spec)
    tensors = mindformers_names(weights, kind) | TRAINING
    found = read_folder(write(tmp_path / "m", spec, tensors, form=form))
    assert found.model == spec and set(found.weights) == set(weights)
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())
    assert (found.prefix_token, found.end_token) == (1, 2)
    assert found.origin["format"] == {"legacy": "MindFormers Llama", "mcore": "MindFormers Mcore"}[kind]


def fused_tensors(weights, spec, kind, *, plain):
    """The weights with w_qkv and w_gate_hidden, or linear_qkv and linear_fc1."""
    from tests.trainer.convert.test_names import fused

    tensors = mindformers_names(weights, kind)
    for layer in range(2):
        qkv, pairs = fused(weights, layer, spec, groups=not plain, alternating=not plain)
        if kind == "mcore":
            prefix = f"decoder.layers.{layer}."
            alone = [f"self_attention.linear_{letter}" for letter in "qkv"] + ["mlp.gating", "mlp.hidden"]
            joint = ("self_attention.linear_qkv", "mlp.linear_fc1")
        else:
            prefix = f"model.layers.{layer}."
            alone = [f"attention.w{letter}" for letter in "qkv"] + ["feed_forward.w1", "feed_forward.w3"]
            joint = ("attention.w_qkv", "feed_forward.w_gate_hidden")
        for name in alone:
            del tensors[f"{prefix}{name}.weight"]
        tensors[f"{prefix}{joint[0]}.weight"], tensors[f"{prefix}{joint[1]}.weight"] = qkv, pairs
    return tensors


@pytest.mark.parametrize("kind", ["legacy", "mcore"])
@pytest.mark.parametrize("plain", [True, False])
def test_fused_weights_follow_the_configuration(tmp_path, kind, plain):
    spec = small_spec("llama", kv_heads=2)
    weights = small_weights(spec)
    rows, alternating = str(plain).lower(), str(not plain).lower()
    more = (
        f"\n    use_contiguous_weight_layout_attention: {rows}"
        f"\n    use_interleaved_weight_layout_mlp: {alternating}"
    )
    tensors = fused_tensors(weights, spec, kind, plain=plain)
    found = read_folder(write(tmp_path / "m", spec, tensors, form="safetensors", more=more))
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())


@pytest.mark.parametrize("kind", ["legacy", "mcore"])
def test_a_layout_that_nobody_states_is_never_guessed(tmp_path, kind):
    """Read the wrong way, the weights would have the right sizes and the model would speak nonsense."""
    spec = small_spec("llama", kv_heads=2)
    tensors = fused_tensors(small_weights(spec), spec, kind, plain=False)
    folder = write(tmp_path / "m", spec, tensors, form="safetensors")
    message = r"qkv\.weight: holds 3 weights in one tensor; releases .* use_contiguous_weight_layout_attention: true"
    with pytest.raises(InputError, match=message):
        read_folder(folder)
    write(
        folder, spec, tensors, form="safetensors", more="\n    use_contiguous_weight_layout_attention: false"
    )
    with pytest.raises(
        InputError, match=r"holds 2 weights in one tensor; .* use_interleaved_weight_layout_mlp: false"
    ):
        read_folder(folder)


def test_gpt2_with_mindformers_names(tmp_path):
    from trainer.convert.mapping import from_ours
    from trainer.convert.names import Format

    spec = small_spec("gpt2")
    weights = small_weights(spec)
    folder = tmp_path / "m"
    write(folder, spec, from_ours(Format.MINDFORMERS_GPT2, weights, spec), form="ckpt")
    (folder / "predict.yaml").write_text(
        "model:\n  model_config: {type: GPT2Config, seq_length: 48, vocab_size: 280, hidden_size: 16, num_layers: 2,"
        " num_heads: 4, expand_ratio: 4, hidden_act: gelu}\n"
    )
    found = read_folder(folder)
    assert found.model == spec
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())


def test_huggingface_configuration_beside_mcore_weights(tmp_path):
    """What MindFormers 1.6 and later read: config.json of the Hugging Face model."""
    spec = small_spec("llama", kv_heads=2, tied_head=False)
    weights = small_weights(spec)
    folder = write(tmp_path / "m", spec, mindformers_names(weights, "mcore"), form="safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": 280,
        "max_position_embeddings": 48,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert read_folder(folder).model == spec


def test_inner_size_as_mindformers_computes_it(tmp_path):
    from trainer.convert.mindformers import to_huggingface_config

    config = {"num_layers": 1, "hidden_size": 4096, "seq_length": 2048}
    assert to_huggingface_config("x", config)["intermediate_size"] == 11008  # Llama 2 7B
    config |= {"ffn_dim_multiplier": 1.3, "hidden_size": 8192, "multiple_of": 4096}
    assert to_huggingface_config("x", config)["intermediate_size"] == 28672  # Llama 2 70B


def test_half_precision_checkpoints(tmp_path):
    import mindspore

    spec = small_spec("llama", kv_heads=2)
    weights = small_weights(spec)
    tensors = mindformers_names(weights, "legacy")
    folder = write(tmp_path / "m", spec, tensors, form="ckpt")
    for kind in (mindspore.float16, mindspore.bfloat16):
        entries = [
            {"name": name, "data": mindspore.Tensor(value).astype(kind)} for name, value in tensors.items()
        ]
        mindspore.save_checkpoint(entries, str(folder / "llama_rank_0-1_10.ckpt"))
        found = read_folder(folder).weights["model.norm.weight"]
        assert found.dtype == np.float32
        assert np.abs(found - weights["model.norm.weight"]).max() < 1e-2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("\n    qkv_has_bias: true", "attention_bias True but mlp_bias False"),
        ("\n    moe_config: {expert_num: 8}", "a mixture of experts"),
        ("\n    sliding_window: 64", "sliding_window 64"),
    ],
)
def test_what_isnt_computed_is_refused(tmp_path, more, message):
    spec = small_spec("llama", kv_heads=2)
    folder = write(
        tmp_path / "m", spec, mindformers_names(small_weights(spec), "legacy"), form="safetensors", more=more
    )
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out")


@pytest.fixture
def folder(tmp_path):
    spec = small_spec("llama", kv_heads=2)
    return write(tmp_path / "m", spec, mindformers_names(small_weights(spec), "legacy"), form="safetensors")


def edit_yaml(folder, old, new):
    file = folder / "predict.yaml"
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: edit_yaml(f, '"None"', "YARN"), "extend_method YARN; only unscaled"),
        (
            lambda f: edit_yaml(f, "LlamaConfig", "Qwen2Config"),
            "architecture Qwen2Config isn't supported; it has biases",
        ),
        (lambda f: edit_yaml(f, "LlamaConfig", "BertConfig"), "architecture BertConfig .* an encoder"),
        (lambda f: edit_yaml(f, "hidden_size: 16", "hidden: 16"), "hidden_size"),
        (lambda f: edit_yaml(f, "model_config", "config"), r"model\.model_config: missing"),
        (lambda f: edit_yaml(f, "type: LlamaConfig", "type: GPT2Config"), "the names of MindFormers Llama"),
        (lambda f: (f / "predict.yaml").rename(f / "a.txt"), "lay the model's config.json"),
        (lambda f: (f / "second.yaml").write_text("model: {}"), "2 YAML files"),
        (
            lambda f: (f / "rank_1.safetensors").write_bytes(b"x"),
            r"2 files \*\.safetensors and no index; merge",
        ),
        (
            lambda f: (f / "param_name_map.json").write_text('{"a": "../b.safetensors"}'),
            "don't trust this model",
        ),
        (lambda f: (f / "param_name_map.json").write_text("[]"), "not an index"),
        (lambda f: (f / "param_name_map.json").write_text("{}"), "lists no weight"),
    ],
)
def test_contradictory_folders_are_refused(folder, tmp_path, edit, message):
    edit(folder)
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_map_of_names_joins_the_shards(folder):
    from safetensors.numpy import load_file

    whole = load_file(folder / "llama.safetensors")
    expected = read_folder(folder).weights
    (folder / "llama.safetensors").unlink()
    names = sorted(whole)
    places = {name: f"part{index % 2}.safetensors" for index, name in enumerate(names)}
    for part in (0, 1):
        save_file({name: whole[name] for name in names[part::2]}, folder / f"part{part}.safetensors")
    (folder / "param_name_map.json").write_text(json.dumps(places))
    found = read_folder(folder).weights
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a MindSpore checkpoint"),
        (b"PK\x03\x04 a zip", "a pickle"),
        (b"\x80\x04\x95 a pickle", "a pickle"),
        (b"\x0a\xff\xff\xff\x07 torn", "not a MindSpore checkpoint"),
        (b"version https", "not a MindSpore checkpoint"),
    ],
)
def test_foreign_and_torn_checkpoints_are_refused(folder, tmp_path, content, message):
    (folder / "llama.ckpt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert(folder / "llama.ckpt", tmp_path / "out")
