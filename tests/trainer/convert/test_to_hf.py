"""Back to Hugging Face: exact for us, and a model that transformers loads and computes alike."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from evalkit.errors import InputError
from tests.support.peers import ask_transformers
from tests.trainer.convert.sources import (
    small_spec,
    small_weights,
    write_gpt2,
    write_llama2c,
    write_tokenizer,
)
from trainer.checkpoint import read_checkpoint
from trainer.convert import convert, convert_to_huggingface
from trainer.convert.folder import read_folder

SPECS = {
    "llama": ("llama", {"kv_heads": 2}),
    "untied": ("llama", {"kv_heads": 1, "tied_head": False}),
    "biased": ("llama", {"bias": True}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tied_head": False}),
}


@pytest.fixture(scope="module", params=SPECS)
def checkpoint(request, tmp_path_factory):
    """A checkpoint with random weights, as training would write it."""
    from evalkit.bundle import TokenizerSpec
    from evalkit.canonical import sha256_file
    from evalkit.tokenization import TextTokenizer
    from trainer.checkpoint import RunFiles
    from trainer.convert.probe import conversion_probe
    from trainer.data.tokenizer import CHAT_TEMPLATE
    from trainer.model.weights import weights_bytes

    folder = tmp_path_factory.mktemp(request.param)
    family, options = SPECS[request.param]
    spec = small_spec(family, **options)
    write_tokenizer(folder)
    file = folder / "tokenizer.json"
    tokenizer = TextTokenizer.from_file(file, prefix_token=1, end_token=2, chat_template=CHAT_TEMPLATE)
    files = RunFiles(
        name=request.param,
        model=spec,
        tokenizer=TokenizerSpec(
            sha256=sha256_file(file), prefix_token=1, end_token=2, chat_template=CHAT_TEMPLATE
        ),
        config={},
        tokenizer_json=file.read_bytes(),
        token_counts=None,
        word_counts=None,
        probe=conversion_probe(tokenizer, spec.max_length),
    )
    files.write(folder / "ck", weights_bytes(small_weights(spec)), {})
    return read_checkpoint(folder / "ck")


def test_there_and_back_is_exact(checkpoint, tmp_path):
    model = convert_to_huggingface(checkpoint.path, tmp_path / "hf")
    assert model == checkpoint.meta.model
    back = convert(tmp_path / "hf", tmp_path / "again", name=checkpoint.meta.name)
    assert back.meta.model == checkpoint.meta.model and back.meta.tokenizer == checkpoint.meta.tokenizer
    for file in ("weights.safetensors", "tokenizer.json"):
        assert (back.path / file).read_bytes() == (checkpoint.path / file).read_bytes(), file
    with safe_open(tmp_path / "hf" / "model.safetensors", "np") as stored:
        assert stored.metadata() == {"format": "pt"}
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["bos_token_id"] == 1 and config["eos_token_id"] == 2


@pytest.mark.slow
def test_transformers_loads_and_computes_the_same(checkpoint, tmp_path, peers_python):
    from tests.trainer.reference import forward, log_softmax

    convert_to_huggingface(checkpoint.path, tmp_path / "hf")
    spec, text = checkpoint.meta.model, "Maria lives in Graz, 12 + 30."
    messages = [{"role": "user", "content": "Tom?"}]
    answer = ask_transformers(peers_python, tmp_path / "hf", [{"text": text}], end=2, chat=messages)
    assert answer["loading"] == {"missing_keys": [], "unexpected_keys": []}
    assert answer["chat"] == "<|user|>Tom?<|end|><|assistant|>"
    item = answer["items"][0]
    ids = np.array([item["ids"]], np.int32)
    assert ids[0, 0] == 1  # the tokenizer puts the prefix token there by itself
    positions = np.arange(ids.shape[1], dtype=np.int32)[None]
    weights = load_file(checkpoint.path / "weights.safetensors")
    logits = forward(spec, weights, ids, positions, np.ones_like(positions))
    expected = log_softmax(logits)[0, np.arange(ids.shape[1] - 1), ids[0, 1:]]
    assert np.abs(np.array(item["logprobs"]) - expected).max() < 1e-4


@pytest.mark.parametrize("prefix", [None, 1, 2])
@pytest.mark.parametrize("processor", [True, False])
def test_the_tokenizer_puts_the_prefix_there_by_itself(tmp_path, prefix, processor):
    """Where another file said so (add_bos_token), transformers wouldn't."""
    from tokenizers import Tokenizer

    from trainer.convert.hf_tokenizer import framing_tokenizer

    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    if not processor:
        content["post_processor"] = None
    data = json.dumps(content).encode()
    framed = framing_tokenizer(data, prefix)
    first = [] if prefix is None else [prefix]
    before, after = Tokenizer.from_str(data.decode()), Tokenizer.from_str(framed.decode())
    plain = before.encode("Tom 住", add_special_tokens=False).ids
    assert after.encode("Tom 住").ids == first + plain
    assert after.encode("Tom 住", add_special_tokens=False).ids == plain
    assert (framed == data) == (first == ([1] if processor else []))


def test_other_sources_go_straight_to_a_folder(tmp_path):
    spec = small_spec("llama")
    weights = small_weights(spec)
    write_tokenizer(tmp_path)
    convert_to_huggingface(write_llama2c(tmp_path / "m.bin", spec, weights, version=1), tmp_path / "hf")
    found = read_folder(tmp_path / "hf")
    assert found.model == spec
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "llama", "norm": "layernorm"}, "a llama model with layernorm, rotary, swiglu"),
        (
            {"family": "gpt2", "kv_heads": 2},
            "2 key heads and bias True; GPT2LMHeadModel computes no such model",
        ),
        ({"family": "gpt2", "bias": False}, "bias False"),
        ({"family": "llama", "attention_window": 8}, "its attention window is cut"),
    ],
)
def test_what_hugging_face_has_no_class_for(options, message, tmp_path):
    from evalkit.bundle import TokenizerSpec
    from trainer.convert.to_hf import write_huggingface

    spec = small_spec(**options)
    tokenizer = TokenizerSpec(sha256="", prefix_token=None, end_token=None, chat_template=None)
    with pytest.raises(InputError, match=message):
        write_huggingface(tmp_path / "hf", small_weights(spec), spec, b"", tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_there_and_checkpoints_to_checkpoints(checkpoint, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        convert_to_huggingface(checkpoint.path, tmp_path)
    with pytest.raises(InputError, match="is a checkpoint already; export it, or convert it with --to hf"):
        convert(checkpoint.path, tmp_path / "again")


def test_a_trained_run_goes_to_hugging_face_and_gives_the_same_text(tiny_run, tmp_path):
    from trainer.generate import generate, load_generator, prompt_ids
    from trainer.sampling import Sampling

    convert_to_huggingface(tiny_run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ck")
    results = []
    for path in (tiny_run, tmp_path / "ck"):
        generator = load_generator(path)
        ids = prompt_ids(generator.tokenizer, "I am Tom from Bonn.", chat=True)
        results.append(generate(generator, ids, max_new_tokens=8, sampling=Sampling(), seed=0))
    assert results[0] == results[1]


def test_gpt2_text_of_bundles(tmp_path):
    """A converted GPT-2 model: the checkpoint and both backends of its bundle continue alike."""
    from trainer.export.bundle import export_bundle
    from trainer.generate import generate, load_generator, prompt_ids
    from trainer.sampling import Sampling

    spec = small_spec("gpt2")
    checkpoint = convert(write_gpt2(tmp_path / "gpt2", spec, small_weights(spec)), tmp_path / "ck")
    export_bundle(checkpoint, tmp_path / "bundle", formats=["mindir", "onnx"])
    texts = []
    for path, backend in (
        (tmp_path / "ck", None),
        (tmp_path / "bundle", "mindir"),
        (tmp_path / "bundle", "onnx"),
    ):
        generator = load_generator(path, backend)
        ids = prompt_ids(generator.tokenizer, "Wei lives", chat=False)
        texts.append(generate(generator, ids, max_new_tokens=20, sampling=Sampling(), seed=0))
    assert texts[0] == texts[1] == texts[2] and len(texts[0].token_ids) == 20
