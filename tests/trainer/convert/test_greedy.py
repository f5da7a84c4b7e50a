"""Real models, converted and exported: greedy text equals the references' and that of Hugging Face transformers."""

import json
import subprocess
import sys

import pytest

from tests.support.peers import ask_transformers
from tests.support.real_models import reference_meta
from trainer.convert import convert_to_huggingface
from trainer.generate import generate, load_generator, prompt_ids
from trainer.sampling import Sampling

GREEDY = Sampling()
BACKENDS = (None, "mindir", "onnx")
PROMPTS = (
    "Once upon a time",
    "Tom had a little",
    "One day, a girl named Lily",
    "The dog was very happy because",
    "In the morning, the sun",
    '"Where is my ball?" asked Ben.',
    "Water boils at",
    "The capital of France is",
    "To open a bank account, you need",
    "1, 2, 3, 4,",
    "def add(a, b):\n    return",
    "My favourite colour is",
    "Please send the report by",
    "A list of fruits:\n- apple\n-",
    "银行账户",
    "She said that she would",
    "The opposite of hot is",
    "It was raining, so they",
    "Dear customer,\n",
    "The little bird could not fly. It",
)


def continued(path, prompt, count, backend=None):
    generator = load_generator(path, backend)
    ids = prompt_ids(generator.tokenizer, prompt, chat=False)
    return generate(generator, ids, max_new_tokens=count, sampling=GREEDY, seed=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stories260k_continues_as_its_reference(stories_bundle, shared_data, backend):
    meta = reference_meta(shared_data, "stories260K")
    path = stories_bundle.path if backend else stories_bundle.path.parent / "checkpoint"
    for prompt, expected in (("", meta["greedy_from_bos"]), ("Tom had a little", meta["greedy_from_prompt"])):
        found = continued(path, prompt, len(expected["token_ids"]), backend)
        assert found.prompt_ids[0] == 1
        assert found.token_ids == expected["token_ids"]
        assert found.text.strip() == expected["text"]


def test_the_command_prints_it(stories_bundle, shared_data):
    expected = reference_meta(shared_data, "stories260K")["greedy_from_prompt"]
    options = ["--prompt", expected["prompt"], "--max-new-tokens", str(len(expected["token_ids"])), "--json"]
    for backend in ([], ["--backend", "mindir"]):
        done = subprocess.run(
            [sys.executable, "-m", "trainer", "generate", str(stories_bundle.path), *options, *backend],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["token_ids"] == expected["token_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mindir", "onnx"])
def test_smollm2_continues_as_its_reference(smollm2_bundle, shared_data, backend):
    expected = reference_meta(shared_data, "smollm2_135m_instruct")["greedy_from_prompt"]
    found = continued(smollm2_bundle.path, expected["prompt"], 40, backend)
    assert found.token_ids == expected["token_ids"] and found.finish_reason == "end"
    assert found.text == expected["text"]


def check_against_transformers(bundle, python, folder, count):
    convert_to_huggingface(bundle.path.parent / "checkpoint", folder)
    end = bundle.tokenizer.end_token
    items = [{"text": prompt, "new": count} for prompt in PROMPTS]
    answer = ask_transformers(python, folder, items, end=end)
    assert answer["loading"] == {"missing_keys": [], "unexpected_keys": []}
    for backend in ("mindir", "onnx"):
        generator = load_generator(bundle.path, backend)
        for prompt, expected in zip(PROMPTS, answer["items"], strict=True):
            ids = prompt_ids(generator.tokenizer, prompt, chat=False)
            assert ids == expected["ids"], prompt
            found = generate(generator, ids, max_new_tokens=count, sampling=GREEDY, seed=0)
            assert found.token_ids == expected["produced"], (backend, prompt)
            assert found.text == expected["text"], (backend, prompt)


@pytest.mark.slow
def test_stories260k_continues_as_transformers_does(stories_bundle, peers_python, tmp_path):
    check_against_transformers(stories_bundle, peers_python, tmp_path / "hf", 60)


@pytest.mark.slow
def test_smollm2_continues_as_transformers_does(smollm2_bundle, peers_python, tmp_path):
    check_against_transformers(smollm2_bundle, peers_python, tmp_path / "hf", 24)
