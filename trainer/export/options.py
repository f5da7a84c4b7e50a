"""What an export is asked for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError

# An export whose worst token is further off than this isn't the same model, in nats.
TOLERANCE = 1e-3

# Above it MindSpore splits a MindIR over several files, which a bundle doesn't hold.
_MOST_WEIGHT_BYTES = 1 << 30

_BUCKET = re.compile(r"([1-9]\d*)x([1-9]\d*)")


@dataclass(frozen=True)
class Bucket:
    """A static shape: `rows` texts of `length` tokens."""

    rows: int
    length: int

    @classmethod
    def parse(cls, text: str) -> "Bucket":
        """From ROWSxLENGTH.

        Raises:
            InputError: anything else.
        """
        match = _BUCKET.fullmatch(text)
        if match is None:
            raise InputError(f"--static {text}: give ROWSxLENGTH, as in 8x256")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}"


@dataclass(frozen=True)
class ExportOptions:
    """Graphs to write.

    Attributes:
        formats: mindir (always needed), onnx, air (on an Ascend device, with buckets).
        buckets: static shapes to write beside the dynamic graphs.
        tolerance: how far a graph's worst log-probability may lie from the checkpoint's, in nats.
        logits: a graph of raw logits too, in every format; it holds the weights once more.
    """

    formats: Sequence[str]
    buckets: Sequence[Bucket]
    tolerance: float
    logits: bool = False

    def check(self, spec: ModelSpec) -> None:
        """Refuse what can't be exported here.

        Raises:
            InputError: names the option.
        """
        from mindspore import context

        for name in self.formats:
            if name not in ("mindir", "onnx", "air"):
                raise InputError(f"--format {name}: unknown; choose from mindir, onnx, air")
            if name == "air" and context.get_context("device_target") != "Ascend":
                raise InputError(
                    "--format air: AIR can only be exported on an Ascend device; use mindir here"
                )
        if "mindir" not in self.formats:
            raise InputError(
                f"--format {','.join(self.formats)}: a bundle needs its MindIR graphs; use mindir,onnx"
            )
        size = 4 * spec.parameters
        if size > _MOST_WEIGHT_BYTES:
            raise InputError(
                f"{size / (1 << 30):.1f} GiB of weights: a bundle holds graphs of up to 1 GiB; serve the checkpoint with"
                " another engine and test that endpoint"
            )
        if "air" in self.formats and not self.buckets:
            raise InputError("--format air: AIR has static shapes only; add --static ROWSxLENGTH")
        if len(set(self.buckets)) != len(self.buckets):
            raise InputError("--static: a shape is given twice; give each once")
        for bucket in self.buckets:
            if not 2 <= bucket.length <= spec.max_length:
                raise InputError(
                    f"--static {bucket}: the length must lie between 2 and the model's max_length {spec.max_length}"
                )
        if "onnx" in self.formats:
            from trainer.export.onnx import require_onnx

            require_onnx()
