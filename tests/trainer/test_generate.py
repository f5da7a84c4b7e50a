"""Continuing texts: with and without a cache, from a checkpoint and from its bundle."""

import numpy as np
import pytest

import trainer.generate
from evalkit.errors import InputError
from tests.trainer.models import tensors
from trainer.checkpoint import read_checkpoint
from trainer.export.bundle import export_bundle
from trainer.export.graphs import dynamic_inputs, score_ports
from trainer.generate import generate, load_generator, prompt_ids
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights
from trainer.sampling import Sampling, choose

GREEDY = Sampling()


def test_greedy_equals_no_cache_greedy(tiny_run, tiny_export):
    generators = [load_generator(path) for path in (tiny_run, tiny_export)]
    prompt = prompt_ids(generators[0].tokenizer, "I am Tom from Bonn.", chat=True)
    results = [generate(g, prompt, max_new_tokens=12, sampling=GREEDY, seed=0) for g in generators]
    assert results[0] == results[1]

    spec = generators[0].spec
    model = CausalLM(spec)
    load_weights(model, tiny_export / "weights.safetensors")
    model.set_train(False)
    model.set_inputs(*dynamic_inputs(score_ports()[0][:3]))
    ids = list(prompt)
    expected = []
    for _ in range(12):
        row = np.array([ids], np.int32)
        positions = np.arange(len(ids), dtype=np.int32)[None]
        token = int(model(*tensors(row, positions, np.ones_like(row))).asnumpy()[-1].argmax())
        if token == 2:
            break
        expected.append(token)
        ids.append(token)
    assert results[0].token_ids == expected


def test_the_backend_of_a_bundle(tiny_run, tiny_export, tmp_path, monkeypatch):
    """ONNX where it is there, MindSpore where it isn't, and what was asked for or an error."""
    bundle = export_bundle(read_checkpoint(tiny_run), tmp_path / "b", formats=["mindir", "onnx"])
    used = []
    for name in ("onnx_step", "mindspore_step"):
        real = getattr(trainer.generate, name)
        monkeypatch.setattr(
            trainer.generate, name, lambda *a, name=name, real=real: used.append(name) or real(*a)
        )
    texts = []
    for path, backend in (
        (bundle.path, None),
        (bundle.path, "onnx"),
        (bundle.path, "mindir"),
        (tiny_export, None),
        (tiny_run, None),
    ):
        generator = load_generator(path, backend)
        prompt = prompt_ids(generator.tokenizer, "I am Wei from Graz.", chat=True)
        texts.append(generate(generator, prompt, max_new_tokens=10, sampling=GREEDY, seed=0))
    assert used == ["onnx_step", "onnx_step", "mindspore_step", "mindspore_step", "mindspore_step"]
    assert texts[1:] == texts[:-1]
    with pytest.raises(InputError, match=r"--backend onnx: .* has no ONNX graph; export it again"):
        load_generator(tiny_export, "onnx")
    with pytest.raises(InputError, match="--backend mindir: only a bundle has graphs"):
        load_generator(tiny_run, "mindir")


def test_it_stops_at_max_length(tiny_export):
    generator = load_generator(tiny_export)
    prompt = prompt_ids(generator.tokenizer, "Maria " * 20, chat=False)[:60]
    result = generate(generator, prompt, max_new_tokens=500, sampling=Sampling(5.0), seed=1)
    assert len(prompt) + len(result.token_ids) <= generator.spec.max_length
    with pytest.raises(InputError, match="leave no room"):
        generate(generator, [1] * 64, max_new_tokens=1, sampling=GREEDY, seed=0)


def test_sampling_is_seeded(tiny_export):
    generator = load_generator(tiny_export)
    prompt = prompt_ids(generator.tokenizer, "Maria", chat=False)
    first, again, other = (
        generate(generator, prompt, max_new_tokens=20, sampling=Sampling(3.0), seed=seed).token_ids
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_top_k_and_top_p_cut_the_tail():
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1], np.float32))
    random = np.random.default_rng(0)

    def drawn(**options):
        return {choose(logits, Sampling(1.0, **options), random) for _ in range(300)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {1, 2} and drawn(top_k=1) == {1}
    assert drawn(top_p=0.4) == {1} and drawn(top_p=0.75) == {1, 2}
    assert choose(np.zeros(4, np.float32), GREEDY, random) == 0
    assert {choose(np.array([0, 500], np.float32), Sampling(0.01), random) for _ in range(9)} == {1}
