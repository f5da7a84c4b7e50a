"""Mixed precision: which products of a model run in 16 bits (level O2)."""

import mindspore as ms
from mindspore import Tensor, dtype, nn, ops

from evalkit.errors import InputError
from trainer.configuration.precision import PrecisionConfig
from trainer.model.attention import PlainAttention
from trainer.model.decoder import CausalLM


def check_precision(config: PrecisionConfig) -> None:
    """Whether this device can compute as configured.

    Raises:
        InputError: bfloat16 on a CPU.
    """
    target = ms.get_context("device_target")
    if config.level == "O2" and config.dtype == "bfloat16" and target == "CPU":
        raise InputError(
            "precision.dtype: bfloat16 has no kernels on a CPU in MindSpore 2.10; use float16, or an Ascend device"
        )


def apply_precision(model: CausalLM, config: PrecisionConfig) -> None:
    """Make a float32 model multiply its matrices as `config` says; weights stay float32.

    The residual stream, norms, rotary embedding, softmax and logits stay float32: a product's 16-bit result becomes
    float32 where it meets them.
    """
    if config.level == "O0":
        return
    half = getattr(dtype, config.dtype)

    def kind(operation: str) -> ms.Type:
        return dtype.float32 if operation in config.float32 else half

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for cell in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            cell.to_float(kind("projections"))
        for _, cell in mlp.cells_and_names():
            if isinstance(cell, nn.Dense):
                cell.to_float(kind("feed_forward"))
        attention.attend = _MixedAttention(kind("attention_scores"), kind("attention_values"))
    if model.lm_head is None:
        model.project = _MixedProjection(kind("head"))
    else:
        model.lm_head.to_float(kind("head"))


class _MixedProjection(nn.Cell):  # type: ignore[misc]
    """x · weightᵀ in one type."""

    def __init__(self, kind: ms.Type) -> None:
        super().__init__()
        self.kind = kind
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [N, hidden], weight [vocab, hidden] → [N, vocab]."""
        return self.product(x.astype(self.kind), weight.astype(self.kind))


class _PlainMixedAttention(PlainAttention):
    """Attention whose products run in their own types, the softmax between them in float32."""

    def __init__(self, scores: ms.Type, values: ms.Type) -> None:
        super().__init__()
        self.scores, self.values = scores, values

    def construct(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """As the float32 one; the results are float32."""
        products = self.product_transposed(query.astype(self.scores), key.astype(self.scores))
        weights = self.softmax(self.add_mask(products.astype(dtype.float32), mask))
        mixed = self.product(weights.astype(self.values), value.astype(self.values))
        return mixed.astype(dtype.float32), weights


class _MixedAttention(_PlainMixedAttention):
    """The same with its derivative written out, as in `DotProductAttention`."""

    def __init__(self, scores: ms.Type, values: ms.Type) -> None:
        super().__init__(scores, values)
        self.transposed_product = ops.BatchMatMul(transpose_a=True)
        self.row_sum = ops.ReduceSum(keep_dims=True)

    def plain(self) -> PlainAttention:
        """The same without a derivative of its own."""
        return _PlainMixedAttention(self.scores, self.values)

    def bprop(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        outputs: tuple[Tensor, Tensor],
        gradients: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients in the types of query, key and value."""
        mixed, weights = outputs
        dmixed = gradients[0]
        narrow = dmixed.astype(self.values)
        dweights = self.product_transposed(narrow, value.astype(self.values)).astype(dtype.float32)
        dscores = (weights * (dweights - self.row_sum(dmixed * mixed, -1))).astype(self.scores)
        dquery = self.product(dscores, key.astype(self.scores)).astype(query.dtype)
        dkey = self.transposed_product(dscores, query.astype(self.scores)).astype(key.dtype)
        dvalue = self.transposed_product(weights.astype(self.values), narrow).astype(value.dtype)
        return dquery, dkey, dvalue, ops.zeros_like(mask)
