"""Continue a text with a checkpoint or a bundle, one token at a time with a KV cache."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from mindspore import context

from evalkit.bundle import DECODE_ONNX, MANIFEST, TOKENIZER, WEIGHTS, Bundle, ModelSpec, load_bundle
from evalkit.chat import ChatRenderer
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from trainer.checkpoint import read_checkpoint
from trainer.export.graphs import StepGraph, dynamic_inputs, load_mindir, step_ports
from trainer.export.step_calls import Step, mindspore_step, onnx_step
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights
from trainer.sampling import Sampling, choose

Backend = Literal["mindir", "onnx"]


@dataclass(frozen=True)
class Generator:
    """A model ready to continue texts."""

    step: Step
    spec: ModelSpec
    tokenizer: TextTokenizer


@dataclass(frozen=True)
class Generation:
    """What came out. finish_reason: end (the end token, which isn't part of token_ids) or length."""

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    finish_reason: Literal["end", "length"]


def load_generator(path: Path, backend: Backend | None = None) -> Generator:
    """A bundle's decode graph, or the model of a checkpoint (a step-N folder or a run folder).

    Args:
        path: of the bundle or checkpoint.
        backend: of a bundle's graphs; None: ONNX Runtime on a CPU where the bundle has that graph, else MindSpore.

    Raises:
        InputError: neither, or a broken one, or a bundle without that graph.
    """
    if (path / MANIFEST).is_file():
        bundle = load_bundle(path)
        return Generator(_bundle_step(bundle, backend), bundle.model, bundle.tokenizer)
    if backend is not None:
        raise InputError(
            f"--backend {backend}: only a bundle has graphs to choose from; leave it out, or export {path}"
        )
    checkpoint = read_checkpoint(path)
    spec, frame = checkpoint.meta.model, checkpoint.meta.tokenizer
    model = CausalLM(spec)
    load_weights(model, checkpoint.path / WEIGHTS)
    step = StepGraph(model, spec)
    step.set_train(False)
    step.set_inputs(*dynamic_inputs(step_ports(spec)[0]))
    tokenizer = TextTokenizer.from_file(
        checkpoint.path / TOKENIZER,
        prefix_token=frame.prefix_token,
        end_token=frame.end_token,
        chat_template=frame.chat_template,
    )
    return Generator(mindspore_step(step), spec, tokenizer)


def _bundle_step(bundle: Bundle, backend: Backend | None) -> Step:
    has_onnx = DECODE_ONNX in bundle.manifest.graphs
    if backend == "onnx" and not has_onnx:
        raise InputError(
            f"--backend onnx: {bundle.path} has no ONNX graph; export it again with --format mindir,onnx"
        )
    on_cpu = context.get_context("device_target") == "CPU"
    if backend == "onnx" or (
        backend is None and has_onnx and on_cpu and find_spec("onnxruntime") is not None
    ):
        return onnx_step(bundle.graph_file(DECODE_ONNX))
    return mindspore_step(load_mindir(bundle.graph_file("decode"), step_ports(bundle.model)[0]))


def prompt_ids(tokenizer: TextTokenizer, prompt: str, *, chat: bool) -> list[int]:
    """Ids to start from: one user message by the chat template, or the text as it stands (special tokens included)."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("--prompt: not valid Unicode; give UTF-8 text") from None
    if chat:
        return ChatRenderer(tokenizer).opening(None, prompt)
    prefix = [] if tokenizer.prefix_token is None else [tokenizer.prefix_token]
    return prefix + tokenizer.encode_ids(prompt, special=True)


def generate(
    generator: Generator, prompt: list[int], *, max_new_tokens: int, sampling: Sampling, seed: int
) -> Generation:
    """Continue `prompt` until the end token, `max_new_tokens`, or the model's max_length.

    Raises:
        InputError: the prompt is empty or fills the model's max_length.
    """
    spec = generator.spec
    if not prompt:
        raise InputError("--prompt: no token to start from; give some text")
    if len(prompt) >= spec.max_length:
        raise InputError(
            f"--prompt: {len(prompt)} tokens leave no room below the model's max_length {spec.max_length}"
        )
    random = np.random.default_rng(seed)
    cache = [np.zeros((1, spec.kv_heads, 0, spec.head_size), np.float32)] * (2 * spec.layers)
    new, position = prompt, 0
    produced: list[int] = []
    while len(produced) < max_new_tokens and len(prompt) + len(produced) < spec.max_length:
        end = position + len(new)
        inputs = (
            np.array([new], np.int32),
            np.arange(position, end, dtype=np.int32)[None],
            np.arange(position, dtype=np.int32)[None],
            np.array([len(new) - 1], np.int32),
        )
        logits, *step_cache = generator.step((*inputs, *cache))
        cache = [np.concatenate(pair, axis=2) for pair in zip(cache, step_cache, strict=True)]
        token = choose(logits[0], sampling, random)
        if token == generator.tokenizer.end_token:
            return Generation(generator.tokenizer.decode(produced), prompt, produced, "end")
        produced.append(token)
        new, position = [token], end
    return Generation(generator.tokenizer.decode(produced), prompt, produced, "length")
