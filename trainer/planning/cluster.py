"""CLUSTER.yaml and MODEL.yaml of `trainer screen`: the machine, and what is to be trained on it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.configuration.strict import Distinct, Listed, Positive, Strict
from trainer.planning.cost import BandwidthCurve
from trainer.planning.settings import DeviceMemory, GivenModel, GradientType, Recompute, Rows
from trainer.planning.shapes import Length
from trainer.planning.time_model import TimeModel


class BandwidthPoint(Strict):
    """Bus bandwidth of an all-reduce: size / time · 2(n - 1)/n."""

    size_mib: float = Field(gt=0)
    gb_s: float = Field(gt=0)


class Link(Strict):
    """A level of the network: groups of up to `devices` neighbouring ranks stay within it.

    Attributes:
        bandwidth: measured, by rising message size; one point is a constant.
        latency_us: of a message from neighbour to neighbour.
        hidden_share: of its communication that happens while the device computes.
    """

    level: str
    devices: Positive
    bandwidth: Listed[BandwidthPoint] = Field(min_length=1)
    latency_us: float = Field(default=0, ge=0)
    hidden_share: float = Field(default=0, ge=0, le=1)

    @model_validator(mode="after")
    def _rising(self) -> "Link":
        sizes = [point.size_mib for point in self.bandwidth]
        if sizes != sorted(set(sizes)):
            raise ValueError("bandwidth: size_mib must rise")
        return self

    def curve(self) -> BandwidthCurve:
        """The points as a curve."""
        return BandwidthCurve(
            tuple(point.size_mib for point in self.bandwidth), tuple(point.gb_s for point in self.bandwidth)
        )


class Device(DeviceMemory):
    """A device's memory (named) and speed.

    Attributes:
        peak_tflops: in the type that matrices are multiplied in.
        alignment: numbers a side of the matrix unit's tiles (8 on A100, 16 on Ascend).
        misaligned_penalty: factor on the time of matrices that don't fill them (1.3 measured on A100).
    """

    memory_gib: float = Field(gt=0)
    peak_tflops: float = Field(gt=0)
    alignment: Positive = 16
    misaligned_penalty: float = Field(default=1.3, ge=1)


class GivenTimes(Strict):
    """Coefficients of the time model, where nobody has calibrated one; see `TimeModel`."""

    efficiency: float = Field(gt=0, le=1)
    layer_micro_batch_ms: float = Field(default=0, ge=0)
    step_s: float = Field(default=0, ge=0)
    relative_error: float | None = Field(default=None, gt=0)

    def model(self) -> TimeModel:
        """As the time model takes them; communication comes from the links."""
        return TimeModel(
            efficiency=self.efficiency,
            layer_micro_batch_ms=self.layer_micro_batch_ms,
            step_s=self.step_s,
            relative_error=self.relative_error,
        )


class ClusterFile(Strict):
    """CLUSTER.yaml.

    Attributes:
        links: from the innermost level to the one that reaches all devices.
        times: needed where no measurements are given.
    """

    version: Literal[1]
    name: str = "cluster"
    nodes: int = Field(gt=0, le=1 << 16)
    devices_per_node: int = Field(gt=0, le=1 << 10)
    device: Device
    links: Listed[Link] = ()
    times: GivenTimes | None = None

    @model_validator(mode="after")
    def _reaches(self) -> "ClusterFile":
        reach = [link.devices for link in self.links]
        if reach != sorted(set(reach)) or (reach and reach[-1] < self.devices):
            raise ValueError(f"links: devices must rise, up to all {self.devices} devices at the last level")
        return self

    @property
    def devices(self) -> int:
        """All of them."""
        return self.nodes * self.devices_per_node

    def link(self, span: int) -> Link | None:
        """The innermost level that a group over `span` neighbouring ranks stays within; None where none is given."""
        return next((link for link in self.links if link.devices >= span), None)


_Whole = Annotated[int, Field(gt=0, le=1 << 24)]


class SearchSpace(Strict):
    """What is tried.

    Attributes:
        devices: how many are used; default all of the cluster.
        max_model: largest tensor-parallel degree; default a node's devices.
        uneven_stages: whether stages may have unequal numbers of layers.
    """

    devices: _Whole | None = None
    micro_batch_sizes: Distinct[_Whole] = Field(default=(1, 2, 4, 8), min_length=1)
    recompute: Distinct[Recompute] = Field(default=("none", "selective", "full"), min_length=1)
    zero_stages: Distinct[Annotated[int, Field(ge=0, le=3)]] = Field(default=(0, 1), min_length=1)
    interleave: Distinct[_Whole] = Field(default=(1,), min_length=1)
    schedules: Distinct[Literal["1f1b", "gpipe"]] = Field(default=("1f1b",), min_length=1)
    sequence_parallel: Distinct[bool] = Field(default=(False,), min_length=1)
    max_model: _Whole | None = None
    max_pipeline: _Whole | None = None
    uneven_stages: bool = False


class ScreenFile(Strict):
    """MODEL.yaml: the model, its step and what to try.

    Attributes:
        rows_per_step: the global batch.
    """

    version: Literal[1]
    name: str = "model"
    model: GivenModel
    sequence_length: Length
    rows_per_step: Rows
    gradient_type: GradientType = "fp32"
    flash_attention: bool = True
    fused_activation: bool = True
    dropout: bool = False
    logits_bytes: float = Field(default=10, ge=0)
    search: SearchSpace = SearchSpace()
