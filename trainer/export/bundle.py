"""Export: a checkpoint becomes a bundle folder, whole or not at all."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mindspore import context

from evalkit.backends.raw_logits import open_logits
from evalkit.bundle import (
    LOGITS,
    LOGITS_ONNX,
    MANIFEST,
    SCHEMA,
    SCORE_ONNX,
    TOKEN_COUNTS,
    TOKENIZER,
    WEIGHTS,
    WORD_COUNTS,
    Bundle,
    FileSpec,
    GraphSpec,
    ModelSpec,
    Parity,
    load_bundle,
    manifest_digest,
    model_digest,
)
from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.files import folder_atomic, write_json_atomic
from trainer.checkpoint import Checkpoint
from trainer.export.graphs import (
    LogitsGraph,
    ScoreGraph,
    StepGraph,
    export_mindir,
    load_mindir,
    logits_ports,
    score_ports,
    step_ports,
)
from trainer.export.onnx import export_onnx, require_onnx
from trainer.export.parity import compare, decode_logprobs, logits_logprobs, onnx_logprobs, score_logprobs
from trainer.model.decoder import CausalLM
from trainer.model.weights import load_weights

_SCORE_FILE = "graphs/score.mindir"
_STEP_FILE = "graphs/step.mindir"
_SCORE_ONNX_FILE = "graphs/score.onnx"
_LOGITS_FILE = "graphs/logits.mindir"
_LOGITS_ONNX_FILE = "graphs/logits.onnx"


def export_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    formats: Sequence[str] = ("mindir",),
    attention_window: int | None = None,
    name: str | None = None,
    logits: bool = False,
) -> Bundle:
    """Write the bundle `out`.

    The graphs are loaded again from the file and compared with the checkpoint before anything is published; the
    finished folder passes `load_bundle`.

    Args:
        checkpoint: what to export.
        out: the bundle folder; must not exist.
        formats: graph formats: mindir (always needed) and onnx (a twin of the score graph).
        attention_window: how far back a token sees, itself included; None keeps the checkpoint's own. Another window
            makes another model with another digest.
        name: the bundle's name; None keeps the checkpoint's.
        logits: export a graph of raw logits too, in every format; it holds the weights once more.

    Raises:
        InputError: `out` exists, the format isn't possible here, or parity is worse than allowed.
    """
    _check_formats(formats)
    meta = checkpoint.meta
    spec = meta.model
    if attention_window is not None:
        spec = spec.model_copy(update={"attention_window": attention_window})
    model = CausalLM(spec)
    load_weights(model, checkpoint.path / WEIGHTS)
    model.set_train(False)
    with folder_atomic(out) as staging:
        for file in (WEIGHTS, TOKENIZER, TOKEN_COUNTS, WORD_COUNTS):
            if file in meta.files:
                shutil.copyfile(checkpoint.path / file, staging / file)
        (staging / "graphs").mkdir()
        graphs, parity = _write_graphs(staging, model, spec, checkpoint, with_onnx="onnx" in formats)
        if logits:
            more, found = _write_logits(staging, model, spec, checkpoint, with_onnx="onnx" in formats)
            graphs, parity = {**graphs, **more}, {**parity, **found}
        files = {
            path.relative_to(staging).as_posix(): FileSpec(
                sha256=sha256_file(path), bytes=path.stat().st_size
            )
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        }
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "name": name or meta.name,
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "model_digest": model_digest(files[WEIGHTS].sha256, files[TOKENIZER].sha256, spec),
            "model": spec.model_dump(),
            "tokenizer": meta.tokenizer.model_dump(),
            "graphs": {role: graph.model_dump() for role, graph in graphs.items()},
            "files": {path: file.model_dump() for path, file in files.items()},
            "training": meta.training or None,
            "parity": {graph: result.model_dump() for graph, result in parity.items()},
        }
        content["manifest_sha256"] = manifest_digest(content)
        write_json_atomic(staging / MANIFEST, content)
        load_bundle(staging)
    return load_bundle(out)


def _check_formats(formats: Sequence[str]) -> None:
    for name in formats:
        if name == "air" and context.get_context("device_target") != "Ascend":
            raise InputError("--format air: AIR can only be exported on an Ascend device; use mindir here")
        if name not in ("mindir", "onnx"):
            raise InputError(f"--format {name}: unknown; choose from mindir, onnx")
    if "mindir" not in formats:
        raise InputError(f"--format {','.join(formats)}: a bundle needs its MindIR graphs; use mindir,onnx")
    if "onnx" in formats:
        require_onnx()


def _write_graphs(
    folder: Path, model: CausalLM, spec: ModelSpec, checkpoint: Checkpoint, *, with_onnx: bool
) -> tuple[dict[str, GraphSpec], dict[str, Parity]]:
    score_inputs, score_outputs = score_ports()
    step_inputs, step_outputs = step_ports(spec)
    score, step = ScoreGraph(model, spec), StepGraph(model, spec)
    export_mindir(score, score_inputs, folder / _SCORE_FILE)
    export_mindir(step, step_inputs, folder / _STEP_FILE)

    probe = checkpoint.probe
    expected = score_logprobs(score, probe)
    found = score_logprobs(load_mindir(folder / _SCORE_FILE, score_inputs), probe)
    decoded, computed = decode_logprobs(load_mindir(folder / _STEP_FILE, step_inputs), spec, probe)
    parity = {
        "score": compare("score", found, expected, probe.segments > 0),
        "decode": compare("step", decoded, expected, computed),
    }
    step_spec = GraphSpec(format="mindir", file=_STEP_FILE, inputs=step_inputs, outputs=step_outputs)
    graphs = {
        "score": GraphSpec(format="mindir", file=_SCORE_FILE, inputs=score_inputs, outputs=score_outputs),
        "prefill": step_spec,
        "decode": step_spec,
    }
    if with_onnx:
        file = folder / _SCORE_ONNX_FILE
        export_onnx(score, spec, score_inputs, score_outputs, file)
        parity[SCORE_ONNX] = compare(SCORE_ONNX, onnx_logprobs(file, probe), expected, probe.segments > 0)
        graphs[SCORE_ONNX] = GraphSpec(
            format="onnx", file=_SCORE_ONNX_FILE, inputs=score_inputs, outputs=score_outputs
        )
    return graphs, parity


def _write_logits(
    folder: Path, model: CausalLM, spec: ModelSpec, checkpoint: Checkpoint, *, with_onnx: bool
) -> tuple[dict[str, GraphSpec], dict[str, Parity]]:
    inputs, outputs = logits_ports(spec)
    graph, probe = LogitsGraph(model, spec), checkpoint.probe
    expected = score_logprobs(ScoreGraph(model, spec), probe)
    export_mindir(graph, inputs, folder / _LOGITS_FILE)
    graphs = {LOGITS: GraphSpec(format="mindir", file=_LOGITS_FILE, inputs=inputs, outputs=outputs)}
    if with_onnx:
        export_onnx(graph, spec, inputs, outputs, folder / _LOGITS_ONNX_FILE)
        graphs[LOGITS_ONNX] = GraphSpec(format="onnx", file=_LOGITS_ONNX_FILE, inputs=inputs, outputs=outputs)
    parity = {
        role: compare(
            role, logits_logprobs(open_logits(folder / written.file), probe), expected, probe.segments > 0
        )
        for role, written in graphs.items()
    }
    return graphs, parity
