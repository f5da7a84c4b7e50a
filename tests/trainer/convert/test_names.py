"""The table of names: exact in both directions, and layouts as other projects describe them."""

import numpy as np
import pytest

from evalkit.errors import InputError
from trainer.config import ModelConfig
from trainer.convert.mapping import from_ours, to_ours
from trainer.convert.names import TABLE, Format, Layout, canonical, format_of, is_weight, weight_shapes
from trainer.model.decoder import CausalLM
from trainer.model.weights import weights_of

SPECS = {
    "llama": {"family": "llama", "kv_heads": 2},
    "untied": {"family": "llama", "kv_heads": 1, "tied_head": False},
    "biased": {"family": "llama", "kv_heads": 2, "bias": True},
    "gpt2": {"family": "gpt2"},
}
FORMATS = [(kind, "gpt2" if "GPT-2" in kind.value else "llama") for kind in Format] + [
    (Format.HF_GPT2, "gpt2"),
    *((kind, "untied") for kind in (Format.HF_LLAMA, Format.MCORE, Format.LLAMA2C, Format.GGUF)),
    *((kind, "biased") for kind in (Format.HF_LLAMA, Format.MCORE, Format.GGUF)),
]


def spec_of(name):
    return ModelConfig(hidden_size=16, layers=2, heads=4, max_length=24, **SPECS[name]).spec(40)


def random_weights(spec, seed=0):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}


@pytest.mark.parametrize("name", SPECS)
def test_the_shapes_are_those_of_the_model(name):
    spec = spec_of(name)
    assert weight_shapes(spec) == {name: value.shape for name, value in weights_of(CausalLM(spec)).items()}


@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_there_and_back_is_exact(kind, name):
    spec = spec_of(name)
    weights = random_weights(spec)
    theirs = from_ours(kind, weights, spec)
    assert all(canonical(key) == key and is_weight(key) for key in theirs)
    assert format_of(theirs) == kind
    assert sum(value.size for value in theirs.values()) == spec.parameters
    back = to_ours("here", kind, theirs, spec)
    assert list(back) == list(weights)
    for key, value in weights.items():
        assert back[key].dtype == np.float32 and back[key].tobytes() == value.tobytes(), key


@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_missing_and_surplus_weights_are_named(kind, name):
    spec = spec_of(name)
    whole = from_ours(kind, random_weights(spec), spec)
    for lost in sorted(whole)[:: max(1, len(whole) // 5)]:
        with pytest.raises(InputError, match="weight is missing") as caught:
            to_ours("here", kind, {key: value for key, value in whole.items() if key != lost}, spec)
        assert lost in str(caught.value) and len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match=r"here: extra\.weight: weight is unknown"):
        to_ours("here", kind, {**whole, "extra.weight": np.zeros(3, np.float32)}, spec)
    turned = next(key for key, value in whole.items() if value.ndim == 2 and len(set(value.shape)) == 2)
    with pytest.raises(InputError, match="its configuration asks for") as caught:
        to_ours("here", kind, {**whole, turned: whole[turned].T}, spec)
    assert turned in str(caught.value)


def test_no_two_weights_of_a_format_share_a_name_unless_fused():
    for kind in Format:
        seen = [place for row in TABLE for place in row.places[kind] if not place.layout.fused]
        assert len({place.name for place in seen}) == len(seen)


def test_rotary_pairs():
    """Row 2i of a head of llama2.c and GGUF is our row i, row 2i + 1 our row i + half."""
    spec = spec_of("llama")
    ours = random_weights(spec)
    theirs = from_ours(Format.LLAMA2C, ours, spec)
    for letter, heads in (("q", 4), ("k", 2)):
        mine, other = ours[f"model.layers.1.self_attn.{letter}_proj.weight"], theirs[f"w{letter}.1"]
        for head in range(heads):
            for pair in range(2):
                assert np.array_equal(other[head * 4 + 2 * pair], mine[head * 4 + pair])
                assert np.array_equal(other[head * 4 + 2 * pair + 1], mine[head * 4 + pair + 2])


def test_conv1d_of_gpt2():
    """c_attn is (inputs, outputs), queries, keys and values side by side."""
    spec = spec_of("gpt2")
    ours = random_weights(spec)
    theirs = from_ours(Format.HF_GPT2, ours, spec)
    fused, bias = theirs["transformer.h.1.attn.c_attn.weight"], theirs["transformer.h.1.attn.c_attn.bias"]
    assert fused.shape == (16, 48) and bias.shape == (48,)
    for index, letter in enumerate("qkv"):
        name = f"model.layers.1.self_attn.{letter}_proj"
        assert np.array_equal(fused[:, 16 * index : 16 * (index + 1)], ours[f"{name}.weight"].T)
        assert np.array_equal(bias[16 * index : 16 * (index + 1)], ours[f"{name}.bias"])
    assert np.array_equal(
        theirs["transformer.h.0.mlp.c_fc.weight"], ours["model.layers.0.mlp.up_proj.weight"].T
    )
    mindformers = from_ours(Format.MINDFORMERS_GPT2, ours, spec)
    assert np.array_equal(
        mindformers["backbone.blocks.0.attention.dense2.weight"],
        ours["model.layers.0.self_attn.k_proj.weight"],
    )
    assert np.array_equal(
        mindformers["backbone.blocks.0.output.mapping.weight"], ours["model.layers.0.mlp.up_proj.weight"].T
    )
    assert np.array_equal(mindformers["backbone.layernorm.gamma"], ours["model.norm.weight"])
    assert np.array_equal(mindformers["backbone.layernorm.beta"], ours["model.norm.bias"])


def fused(ours, layer, spec, *, groups: bool, alternating: bool):
    """w_qkv and w_gate_hidden of one layer, written as loops over rows."""
    prefix, size = f"model.layers.{layer}.", spec.head_size
    q, k, v = (ours[f"{prefix}self_attn.{letter}_proj.weight"] for letter in "qkv")
    gate, up = ours[f"{prefix}mlp.gate_proj.weight"], ours[f"{prefix}mlp.up_proj.weight"]
    rows = [*q, *k, *v]
    if groups:
        rows, each = [], spec.heads // spec.kv_heads
        for head in range(spec.kv_heads):
            rows += [*q[head * each * size : (head + 1) * each * size]]
            rows += [*k[head * size : (head + 1) * size], *v[head * size : (head + 1) * size]]
    pairs = [row for both in zip(gate, up, strict=True) for row in both] if alternating else [*gate, *up]
    return np.stack(rows), np.stack(pairs)


@pytest.mark.parametrize("kind", [Format.MINDFORMERS_LLAMA, Format.MCORE])
@pytest.mark.parametrize("plain", [False, True])
def test_fused_tensors_of_mindformers(kind, plain):
    spec = spec_of("llama")
    ours = random_weights(spec)
    theirs = from_ours(kind, ours, spec)
    for layer in range(2):
        qkv, pairs = fused(ours, layer, spec, groups=not plain, alternating=not plain)
        if kind == Format.MCORE:
            prefix = f"decoder.layers.{layer}."
            names = [f"{prefix}self_attention.linear_{letter}.weight" for letter in "qkv"]
            names += [f"{prefix}mlp.gating.weight", f"{prefix}mlp.hidden.weight"]
            new = {f"{prefix}self_attention.linear_qkv.weight": qkv, f"{prefix}mlp.linear_fc1.weight": pairs}
        else:
            prefix = f"model.layers.{layer}."
            names = [f"{prefix}attention.w{letter}.weight" for letter in "qkv"]
            names += [f"{prefix}feed_forward.w{number}.weight" for number in (1, 3)]
            new = {
                f"{prefix}attention.w_qkv.weight": qkv,
                f"{prefix}feed_forward.w_gate_hidden.weight": pairs,
            }
        for name in names:
            del theirs[name]
        theirs |= new
    layouts = {Layout.FUSED_GROUPS: Layout.FUSED_ROWS, Layout.FUSED_ALTERNATING: Layout.FUSED_ROWS}
    back = to_ours("here", kind, theirs, spec, layouts if plain else {})
    assert all(np.array_equal(back[name], value) for name, value in ours.items())


def test_an_up_projection_beside_its_own_gate_is_alone():
    """MindFormers 1.6 calls it linear_fc1, as other versions call the fused tensor."""
    spec = spec_of("llama")
    ours = random_weights(spec)
    theirs = from_ours(Format.MCORE, ours, spec)
    theirs = {name.replace(".mlp.hidden.", ".mlp.linear_fc1."): value for name, value in theirs.items()}
    back = to_ours("here", Format.MCORE, theirs, spec)
    assert all(np.array_equal(back[name], value) for name, value in ours.items())


def test_a_tied_head_may_be_stored_but_not_differ():
    spec = spec_of("gpt2")
    theirs = from_ours(Format.HF_GPT2, random_weights(spec), spec)
    theirs["lm_head.weight"] = theirs["transformer.wte.weight"].copy()
    assert "lm_head.weight" not in to_ours("here", Format.HF_GPT2, theirs, spec)
    theirs["lm_head.weight"][0, 0] += 1
    with pytest.raises(InputError, match=r"lm_head\.weight: differs from the embedding"):
        to_ours("here", Format.HF_GPT2, theirs, spec)


def test_undefined_numbers_are_refused():
    spec = spec_of("llama")
    theirs = from_ours(Format.GGUF, random_weights(spec), spec)
    theirs["blk.0.ffn_up.weight"][1, 1] = np.inf
    with pytest.raises(InputError, match=r"blk\.0\.ffn_up\.weight: holds NaN or infinity"):
        to_ours("here", Format.GGUF, theirs, spec)


def test_what_isnt_a_weight():
    for name in (
        "transformer.h.3.attn.bias",
        "transformer.h.3.attn.masked_bias",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "adam_m.model.norm_out.weight",
        "global_step",
        "loss_scale",
        "backbone.blocks.11.attention.masked_beta",
    ):
        assert not is_weight(name), name
    assert is_weight("transformer.h.3.attn.c_attn.bias") and is_weight("lm_head.weight")
    assert canonical("h.0.ln_1.weight") == "transformer.h.0.ln_1.weight"
    assert canonical("model.decoder.final_layernorm.weight") == "decoder.final_layernorm.weight"
    assert format_of(["embeddings.word_embeddings.weight"]) is None
