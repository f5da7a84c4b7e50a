"""A cut model: which operator is cut how (as in Megatron-LM), written on the cells as MindSpore's semi-auto mode wants it.

A strategy has a tuple for each tensor that goes into an operator, with the number of parts of each dimension. Sources,
all in MindSpore's documentation: "Operator-level Parallelism" (`Primitive.shard`), "Usage Constraints During Operator
Parallel" (what each operator allows), "Pipeline Parallel", "Optimizer Parallel" and `set_auto_parallel_context`. Nothing
here could be compiled by MindSpore: on a CPU it has no semi-auto mode (docs/training.md).
"""

from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.parallel.nn import Pipeline

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from trainer.config import TrainConfig
from trainer.configuration.parallel import ParallelConfig
from trainer.model.decoder import CausalLM
from trainer.model.norms import RMSNorm
from trainer.precision import apply_precision, check_precision
from trainer.recompute import apply_recompute
from trainer.step import NllCell

Strategy = tuple[tuple[int, ...], ...]

# Token ids, targets, positions, segments and weights of a batch, each [B, S].
_INPUTS = 5


def strategies(parallel: ParallelConfig, spec: ModelSpec) -> dict[str, Strategy]:
    """How each operator of `NllCell(CausalLM(spec))` is cut; empty where each device holds the whole model.

    Rows (B*S) and texts (B) are cut by `data`, heads, inner size and vocabulary by `model`. What follows a product whose
    sum is cut (o_proj, down_proj) is whole again: MindSpore adds the parts up.

    Returns:
        Path of the operator below the `NllCell` → its strategy.
    """
    if not parallel.splits_the_model:
        return {}
    data, model = parallel.data, parallel.model
    rows = (data, 1)
    table: dict[str, Strategy] = {}
    # Gather: a table cut by rows can't have its ids cut too.
    table["model.model.embed_tokens.gather"] = ((model, 1), (1,)) if model > 1 else ((1, 1), (data,))
    if spec.positions == "learned":
        table["model.model.embed_positions.gather"] = ((1, 1), (data,))
        table["model.model.add_positions"] = (rows, rows)
    for layer in range(spec.layers):
        table.update(_layer(f"model.model.layers.{layer}", spec, data, model))
    table.update(_norm("model.model.norm", spec, data))
    table["model.project" if spec.tied_head else "model.lm_head.matmul"] = (rows, (model, 1))
    # LogSoftmax and GatherD: the dimension they look along can't be cut, so the logits are gathered before the loss.
    table["log_softmax"] = (rows,)
    table["pick"] = (rows, rows)
    table["weigh"] = ((data,), (data,))
    table["sum"] = ((data,),)
    return table


def _layer(path: str, spec: ModelSpec, data: int, model: int) -> Iterator[tuple[str, Strategy]]:
    rows, wide = (data, 1), (data, model)
    heads = (data, model, 1, 1)  # [B, heads, S, ...]
    yield from _norm(f"{path}.input_layernorm", spec, data)
    attention = f"{path}.self_attn"
    for name in ("q_proj", "k_proj", "v_proj"):
        yield from _dense(f"{attention}.{name}", spec, wide, (rows, (model, 1)))
    yield f"{attention}.scale_query", (wide, ())
    yield f"{attention}.to_heads", ((data, 1, model, 1),)
    if spec.positions == "rotary":
        yield f"{attention}.rotary.split", (heads,)
        yield f"{attention}.rotary.concat", (heads, heads)
        yield f"{attention}.rotary.multiply", (heads, (data, 1, 1, 1))
        yield f"{attention}.rotary.add", (heads, heads)
    for name in ("product_transposed", "add_mask", "product"):
        yield f"{attention}.attend.{name}", (heads, heads)
    yield f"{attention}.attend.softmax", (heads,)
    yield f"{attention}.to_rows", (heads,)
    yield from _dense(f"{attention}.o_proj", spec, rows, (wide, (1, model)))
    yield from _norm(f"{path}.post_attention_layernorm", spec, data)
    if spec.activation == "swiglu":
        yield from _dense(f"{path}.mlp.gate_proj", spec, wide, (rows, (model, 1)))
        yield f"{path}.mlp.silu", (wide,)  # not in the list of constraints, but implemented
        yield f"{path}.mlp.multiply", (wide, wide)
    else:
        yield f"{path}.mlp.gelu", (wide,)
    yield from _dense(f"{path}.mlp.up_proj", spec, wide, (rows, (model, 1)))
    yield from _dense(f"{path}.mlp.down_proj", spec, rows, (wide, (1, model)))
    yield f"{path}.add", (rows, rows)


def _dense(
    path: str, spec: ModelSpec, outputs: tuple[int, int], product: Strategy
) -> Iterator[tuple[str, Strategy]]:
    """MatMul with transpose_b: ((a, b), (c, b)) gives (a, c); BiasAdd: the bias is cut as the last dimension."""
    yield f"{path}.matmul", product
    if spec.bias:
        yield f"{path}.bias_add", (outputs, (outputs[1],))


def _norm(path: str, spec: ModelSpec, data: int) -> Iterator[tuple[str, Strategy]]:
    """Rows only: the dimension that is normalised stays whole, and so do its weights."""
    rows = (data, 1)
    if spec.norm == "layernorm":
        yield f"{path}.normalise", (rows, (1,), (1,))
        return
    for name in ("square", "mean", "rsqrt"):
        yield f"{path}.normalise.{name}", (rows,)
    yield f"{path}.normalise.add_eps", (rows, ())
    yield f"{path}.normalise.multiply", (rows, rows)
    yield f"{path}.multiply", (rows, (1,))


def stages(parallel: ParallelConfig, spec: ModelSpec) -> dict[str, int]:
    """The pipeline stage of each cell with weights: equal runs of layers, embeddings first, last norm and head last.

    A tied head's weight is the embedding's: MindSpore shares a weight between stages. Empty with one stage.
    """
    if parallel.pipeline == 1:
        return {}
    last = parallel.pipeline - 1
    table = {"model.model.embed_tokens": 0}
    if spec.positions == "learned":
        table["model.model.embed_positions"] = 0
    for layer in range(spec.layers):
        table[f"model.model.layers.{layer}"] = layer * parallel.pipeline // spec.layers
    table["model.model.norm"] = last
    if not spec.tied_head:
        table["model.lm_head"] = last
    return table


def context_settings(parallel: ParallelConfig) -> dict[str, Any]:
    """What `mindspore.set_auto_parallel_context` is told where several devices train together."""
    several = {"device_num": parallel.devices, "gradients_mean": False}
    if not parallel.splits_the_model:
        return {**several, "parallel_mode": ms.ParallelMode.DATA_PARALLEL}
    return {
        **several,
        "parallel_mode": ms.ParallelMode.SEMI_AUTO_PARALLEL,
        # The devices that share a layer read the same rows.
        "dataset_strategy": ((parallel.data, 1),) * _INPUTS,
        "pipeline_stages": parallel.pipeline,
        "enable_parallel_optimizer": parallel.optimizer_shard,
        "enable_alltoall": parallel.enable_alltoall,
    }


def apply_sharding(loss: NllCell, parallel: ParallelConfig, spec: ModelSpec) -> None:
    """Write the strategies on the operators; an uncut model is left as it is.

    Cells with a derivative of their own (attention, rotary embedding, RMSNorm) give way to the same ones without: what
    semi-auto mode does to a hand-written derivative is documented nowhere.
    """
    table = strategies(parallel, spec)
    if not table:
        return
    for layer in loss.model.model.layers:
        attention = layer.self_attn
        attention.attend = attention.attend.plain()
        attention.scale_query = ops.Mul()
        if attention.rotary is not None:
            attention.rotary = attention.rotary.plain()
    for _, cell in loss.model.cells_and_names():
        if isinstance(cell, RMSNorm):
            cell.normalise = cell.normalise.plain()
    for path, strategy in table.items():
        operator(loss, path).shard(strategy)


def operator(loss: NllCell, path: str) -> Any:
    """The primitive at a path of `strategies`; that of a head in 16 bits lies one level deeper."""
    found: Any = loss
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    return found.product if isinstance(found, nn.Cell) else found


class _Gradients(nn.Cell):  # type: ignore[misc]
    """The loss and its gradients as one graph."""

    def __init__(self, forward: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.differentiate = ms.value_and_grad(forward, None, forward.trainable_params())

    def construct(
        self, token_ids: Tensor, targets: Tensor, positions: Tensor, segments: Tensor, weights: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss, gradients = self.differentiate(token_ids, targets, positions, segments, weights)
        return loss, gradients


def sharded_loss(config: TrainConfig, spec: ModelSpec) -> nn.Cell:
    """The loss of a cut model, as MindSpore shall compile it: strategies, recomputation, stages and micro-batches."""
    parallel = config.parallel
    model = CausalLM(spec, 0.0, config.model.vocab_multiple)
    apply_precision(model, config.precision)
    model.set_train(True)
    loss = NllCell(model)
    apply_sharding(loss, parallel, spec)
    if parallel.pipeline == 1:
        apply_recompute(model, parallel)
        return loss
    piped = Pipeline(loss, parallel.micro_batches, stage_config=stages(parallel, spec))
    apply_recompute(model, parallel)
    return piped


def compile_sharded(config: TrainConfig, spec: ModelSpec) -> None:
    """Compile the loss and gradients of a cut model, and end: it isn't trained (unverified: needs an Ascend device).

    The step's norm of gradients, checkpoints and validation would see a device's slices and take them for the whole.

    Raises:
        InputError: always, after the graph is compiled; says so.
    """
    check_precision(config.precision)
    shape = (config.batch_size, config.data.sequence_length)
    ids = [Tensor(np.zeros(shape, np.int32)) for _ in range(_INPUTS - 1)]
    _Gradients(sharded_loss(config, spec)).compile(*ids, Tensor(np.ones(shape, np.float32)))
    raise InputError(
        "parallel: the graph of the cut model compiles, but this version doesn't train it; set model and pipeline to 1 "
        "and optimizer_shard to false (data above 1 trains)"
    )
