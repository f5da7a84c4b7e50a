"""The graphs of a bundle by role: written, loaded again from the file, and compared with the checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import mindspore as ms
from mindspore import nn

from evalkit.backends.raw_logits import open_logits
from evalkit.bundle import (
    DECODE_ONNX,
    LOGITS,
    LOGITS_ONNX,
    PREFILL_ONNX,
    SCORE_ONNX,
    GraphPort,
    GraphSpec,
    ModelSpec,
    Parity,
)
from trainer.checkpoint import Probe
from trainer.export.graphs import (
    LogitsGraph,
    ScoreGraph,
    StepGraph,
    dynamic_inputs,
    export_mindir,
    load_mindir,
    logits_ports,
    score_ports,
    step_ports,
)
from trainer.export.onnx import export_onnx
from trainer.export.onnx_step import export_onnx_step
from trainer.export.options import Bucket, ExportOptions
from trainer.export.parity import (
    Floats,
    Mask,
    compare,
    cut,
    decode_logprobs,
    logits_logprobs,
    onnx_logprobs,
    score_logprobs,
)
from trainer.export.step_calls import mindspore_step, onnx_step, static_step
from trainer.model.decoder import CausalLM

Ports = tuple[list[GraphPort], list[GraphPort]]


@dataclass
class Graphs:
    """What has been written so far.

    Attributes:
        roles: graph by role.
        parity: by role; a graph that plays two roles is measured once, as decode. AIR can't be run by MindSpore, so
            it has none.
    """

    roles: dict[str, GraphSpec] = field(default_factory=dict)
    parity: dict[str, Parity] = field(default_factory=dict)


def write_graphs(
    folder: Path, model: CausalLM, spec: ModelSpec, probe: Probe, options: ExportOptions
) -> Graphs:
    """Write the graphs into `folder`/graphs.

    Args:
        folder: of the bundle.
        model: with its weights.
        spec: its architecture.
        probe: real text for the comparison.
        options: checked.

    Raises:
        InputError: a graph lies further from the checkpoint than `options.tolerance`.
    """
    (folder / "graphs").mkdir()
    writer = _Writer(folder, model, spec, probe, options)
    writer.mindir()
    if "onnx" in options.formats:
        writer.onnx()
    if options.logits:
        writer.logits()
    for bucket in options.buckets:
        writer.static(bucket)
        if "air" in options.formats:
            writer.air(bucket)
    return writer.graphs


class _Writer:
    def __init__(
        self, folder: Path, model: CausalLM, spec: ModelSpec, probe: Probe, options: ExportOptions
    ) -> None:
        self.folder, self.spec, self.probe, self.options = folder, spec, probe, options
        self.model = model
        self.score, self.step = ScoreGraph(model, spec), StepGraph(model, spec)
        self.graphs = Graphs()
        self._expected: Floats | None = None

    @property
    def expected(self) -> Floats:
        """The checkpoint's own log-probabilities."""
        if self._expected is None:
            self._expected = score_logprobs(self.score, self.probe)
        return self._expected

    def mindir(self) -> None:
        score = self._add("mindir", "score", score_ports(), "score")
        step = self._add("mindir", "step", step_ports(self.spec), "prefill", "decode")
        export_mindir(self.score, score_ports()[0], score)
        export_mindir(self.step, step_ports(self.spec)[0], step)
        self._compare_score(
            "score", score_logprobs(load_mindir(score, score_ports()[0]), self.probe), self.probe
        )
        graph = load_mindir(step, step_ports(self.spec)[0])
        self._compare("decode", *decode_logprobs(mindspore_step(graph), self.spec, self.probe))

    def onnx(self) -> None:
        score = self._add("onnx", "score", score_ports(), SCORE_ONNX)
        step = self._add("onnx", "step", step_ports(self.spec), PREFILL_ONNX, DECODE_ONNX)
        export_onnx("score", self.model, self.spec, *score_ports(), score)
        export_onnx_step(self.step, self.spec, step)
        self._compare_score(SCORE_ONNX, onnx_logprobs(score, self.probe), self.probe)
        self._compare(DECODE_ONNX, *decode_logprobs(onnx_step(step), self.spec, self.probe))

    def logits(self) -> None:
        graph, ports = LogitsGraph(self.model, self.spec), logits_ports(self.spec)
        written = {LOGITS: self._add("mindir", "logits", ports, LOGITS)}
        export_mindir(graph, ports[0], written[LOGITS])
        if "onnx" in self.options.formats:
            written[LOGITS_ONNX] = self._add("onnx", "logits", ports, LOGITS_ONNX)
            export_onnx("logits", self.model, self.spec, *ports, written[LOGITS_ONNX])
        for role, file in written.items():
            self._compare_score(role, logits_logprobs(open_logits(file), self.probe), self.probe)

    def static(self, bucket: Bucket) -> None:
        files = {}
        for role, (cell, ports) in self._bucket_graphs(bucket).items():
            files[role] = self._add("mindir", f"{role}_{bucket}", ports, f"{role}_{bucket}")
            export_mindir(cell, ports[0], files[role])
        loaded = {
            role: load_mindir(file, self.graphs.roles[f"{role}_{bucket}"].inputs)
            for role, file in files.items()
        }
        probe = cut(self.probe, bucket.length)
        found = score_logprobs(loaded["score"], probe, rows=bucket.rows, length=bucket.length)
        self._compare_score(f"score_{bucket}", found, probe)
        step = static_step(
            mindspore_step(loaded["prefill"]),
            mindspore_step(loaded["decode"]),
            self.spec,
            bucket.rows,
            bucket.length,
        )
        self._compare(f"decode_{bucket}", *decode_logprobs(step, self.spec, probe, rows=bucket.rows))

    def air(self, bucket: Bucket) -> None:
        for role, (cell, ports) in self._bucket_graphs(bucket).items():
            file = self._add("air", f"{role}_{bucket}", ports, f"{role}_{bucket}_air")
            cell.set_train(False)
            ms.export(cell, *dynamic_inputs(ports[0]), file_name=str(file.with_suffix("")), file_format="AIR")

    def _bucket_graphs(self, bucket: Bucket) -> dict[str, tuple[nn.Cell, Ports]]:
        rows, length = bucket.rows, bucket.length
        return {
            "score": (self.score, _fixed(score_ports(), rows, length, 0)),
            # No device takes an axis of length 0: the first tokens come after one slot, which is empty.
            "prefill": (self.step, _fixed(step_ports(self.spec), rows, length, 1)),
            "decode": (self.step, _fixed(step_ports(self.spec), rows, 1, length)),
        }

    def _add(self, kind: str, name: str, ports: Ports, *roles: str) -> Path:
        file = f"graphs/{name}.{kind}"
        spec = GraphSpec.model_validate(
            {"format": kind, "file": file, "inputs": ports[0], "outputs": ports[1]}
        )
        self.graphs.roles |= dict.fromkeys(roles, spec)
        return self.folder / file

    def _compare_score(self, role: str, found: Floats, probe: Probe) -> None:
        self._compare(role, found, probe.segments > 0)

    def _compare(self, role: str, found: Floats, where: Mask) -> None:
        expected = self.expected[:, : found.shape[1]]
        self.graphs.parity[role] = compare(role, found, expected, where, self.options.tolerance)


def _fixed(ports: Ports, rows: int, new: int, past: int) -> Ports:
    """The ports with numbers for the dynamic dimensions: rows first, then cached or new tokens."""
    inputs = [_with_shape(port, rows, past if port.name.startswith("past_") else new) for port in ports[0]]
    return inputs, [_with_shape(port, rows, new) for port in ports[1]]


def _with_shape(port: GraphPort, *sizes: int) -> GraphPort:
    rest = iter(sizes)
    return port.model_copy(update={"shape": [next(rest) if size is None else size for size in port.shape]})
