"""The strategies of a cut model, against the tensors that really go into its operators."""

from math import prod
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from pydantic import ValidationError

from evalkit.errors import InputError
from tests.trainer.models import FAMILIES, packed_rows, random_model, small_spec, tensors
from trainer.config import ModelConfig, TrainConfig
from trainer.configuration.parallel import ParallelConfig
from trainer.configuration.precision import PrecisionConfig
from trainer.model.attention import PlainAttention
from trainer.model.decoder import CausalLM
from trainer.precision import apply_precision
from trainer.sharding import (
    apply_sharding,
    compile_sharded,
    context_settings,
    operator,
    sharded_loss,
    stages,
    strategies,
)
from trainer.step import NllCell

CUT = ParallelConfig(data=3, model=2)


def spec_of(name):
    """As in the other tests, but two key heads where there is one: one can't lie on two devices."""
    spec = small_spec(name)
    return spec.model_copy(update={"kv_heads": max(2, spec.kv_heads)})


def cut_loss(name, parallel=CUT):
    spec = spec_of(name)
    loss = NllCell(random_model(spec))
    apply_sharding(loss, parallel, spec)
    return loss, spec


def inputs():
    rows = packed_rows()
    return tensors(*rows, (rows[3] > 0).astype(np.float32))


class Recorder:
    """Stands where a primitive stood: keeps the shapes of what goes in and comes out."""

    def __init__(self, primitive):
        self.primitive, self.inputs, self.output = primitive, None, None

    def __call__(self, *arguments):
        flat = [part for one in arguments for part in (one if _tensors(one) else (one,))]
        self.inputs = [part.shape if isinstance(part, Tensor) else () for part in flat]
        result = self.primitive(*arguments)
        self.output = (result[0] if isinstance(result, tuple) else result).shape
        return result


def _tensors(argument):
    return isinstance(argument, tuple) and any(isinstance(part, Tensor) for part in argument)


def record(loss, paths):
    """Run the loss operation by operation; the shapes of each operator."""
    recorders = {}
    for path in paths:
        primitive = operator(loss, path)
        place, name = path.rsplit(".", 1) if "." in path else ("", path)
        cell = loss
        for part in place.split(".") if place else ():
            cell = cell[int(part)] if part.isdigit() else getattr(cell, part)
        recorders[path] = Recorder(primitive)
        delattr(cell, name)
        object.__setattr__(cell, name, recorders[path])
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        value = loss(*inputs())
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    return recorders, float(value.asnumpy())


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def recorded(request):
    loss, spec = cut_loss(request.param)
    table = strategies(CUT, spec)
    recorders, value = record(loss, table)
    return spec, table, recorders, value


def test_every_strategy_fits_the_tensors(recorded):
    """Each has a part for each dimension, divides it, and needs no more devices than there are."""
    _, table, recorders, _ = recorded
    for path, strategy in table.items():
        shapes = recorders[path].inputs
        assert shapes is not None, f"{path} isn't called"
        # Axes, permutations and the dimension of GatherD are no tensors, and have no part in a strategy.
        if len(shapes) != len(strategy):
            shapes = [shape for shape in shapes if shape]
        assert [len(cuts) for cuts in strategy] == [len(shape) for shape in shapes], path
        for cuts, shape in zip(strategy, shapes, strict=True):
            assert all(size % parts == 0 for size, parts in zip(shape, cuts, strict=True)), (
                path,
                shape,
                cuts,
            )
            assert CUT.devices % prod(cuts) == 0, path


def test_the_constraints_of_the_documentation_hold(recorded):
    """MatMul ((a, b), (c, b)) with transpose_b; softmaxes, norms, GatherD and Concat whole along their axis; Gather cuts
    its table or its ids; BiasAdd as the last dimension."""
    _, table, recorders, _ = recorded
    for path, strategy in table.items():
        kind = recorders[path].primitive.name
        if kind == "MatMul":
            assert strategy[0][1] == strategy[1][1], path
        elif kind in ("Softmax", "LogSoftmax", "Concat", "Split", "GatherD", "ReduceMean"):
            assert all(cuts[-1] == 1 for cuts in strategy), path
        elif kind == "LayerNorm":
            assert strategy[0][1] == 1 and strategy[1] == strategy[2] == strategy[0][1:], path
        elif kind == "Gather":
            assert 1 in (strategy[0][0], strategy[1][0]), path
        elif kind == "BiasAdd":
            assert strategy[1] == strategy[0][1:], path
        elif kind == "BatchMatMul":
            assert strategy[0][-2:] == strategy[1][-2:] == (1, 1), path


def test_heads_columns_rows_and_vocabulary_are_cut_as_in_megatron(recorded):
    spec, table, recorders, _ = recorded
    for layer in range(spec.layers):
        attention = f"model.model.layers.{layer}.self_attn"
        for name, heads in (("q_proj", spec.heads), ("k_proj", spec.kv_heads), ("v_proj", spec.kv_heads)):
            weight = recorders[f"{attention}.{name}.matmul"].inputs[1]
            assert table[f"{attention}.{name}.matmul"][1] == (2, 1)
            assert weight[0] // 2 == heads // 2 * spec.head_size  # whole heads
        assert table[f"{attention}.o_proj.matmul"] == ((3, 2), (1, 2))
        assert table[f"{attention}.attend.product"][0] == (3, 2, 1, 1)
        assert recorders[f"{attention}.attend.product"].inputs[1][1] == spec.kv_heads
        mlp = f"model.model.layers.{layer}.mlp"
        assert table[f"{mlp}.up_proj.matmul"][1] == (2, 1) and table[f"{mlp}.down_proj.matmul"][1] == (1, 2)
    assert table["model.model.embed_tokens.gather"] == ((2, 1), (1,))
    head = "model.project" if spec.tied_head else "model.lm_head.matmul"
    assert recorders[head].inputs[1][0] == spec.vocab_size and table[head] == ((3, 1), (2, 1))


def test_no_product_or_sum_between_cut_operators_is_forgotten(recorded):
    """Every primitive of the layers that computes is in the table."""
    spec, table, _, _ = recorded
    loss = NllCell(random_model(spec))
    apply_sharding(loss, CUT, spec)
    for index in range(spec.layers):
        for name, cell in loss.model.model.layers[index].cells_and_names():
            for attribute, primitive in cell._primitives.items():
                # nn.Dense asks for shapes of inputs with more than two dimensions; ours have two.
                if primitive is None or primitive.name in ("Reshape", "Shape"):
                    continue
                path = ".".join(part for part in (f"model.model.layers.{index}", name, attribute) if part)
                assert path in table, path


def test_the_cut_cells_compute_what_the_others_do(recorded):
    spec, _, _, value = recorded
    whole = float(NllCell(random_model(spec))(*inputs()).asnumpy())
    assert value == pytest.approx(whole, rel=1e-6)


def test_mindspore_implements_each_operator_in_parallel():
    """Its library holds a class of each name; a name that isn't there would be cut by nobody."""
    library = (Path(ms.__file__).parent / "lib" / "libmindspore_frontend.so").read_bytes()
    names = set()
    for family in FAMILIES:
        loss, spec = cut_loss(family)
        names |= {operator(loss, path).name for path in strategies(CUT, spec)}
    assert len(names) > 15
    # Concat and Gather are known by these names; others by their own.
    missing = [name for name in names if f"{len(name) + 4}{name}Info".encode() not in library]
    assert not missing
    assert b"11NoSuchInfo" not in library


def test_the_operators_carry_their_strategies_and_uncut_ones_none():
    for family in ("llama-grouped-untied-window", "gpt2"):
        loss, spec = cut_loss(family)
        table = strategies(CUT, spec)
        assert {path: operator(loss, path).attrs["in_strategy"] for path in table} == table
        assert not any(hasattr(type(cell), "bprop") and "bprop" in vars(type(cell)) for cell in loss.cells())
        assert type(loss.model.model.layers[0].self_attn.attend) is PlainAttention
        uncut = NllCell(random_model(spec))
        apply_sharding(uncut, ParallelConfig(data=3), spec)
        assert strategies(ParallelConfig(data=3), spec) == {}
        for _, cell in uncut.cells_and_names():
            for primitive in cell._primitives.values():
                assert primitive is None or "in_strategy" not in primitive.attrs
        assert hasattr(uncut.model.model.layers[0].self_attn.attend, "bprop")


def test_a_head_in_16_bits_is_cut_as_well():
    spec = spec_of("llama")
    model = CausalLM(spec)
    apply_precision(model, PrecisionConfig(level="O2"))
    loss = NllCell(model)
    apply_sharding(loss, CUT, spec)
    assert loss.model.project.product.attrs["in_strategy"] == ((3, 1), (2, 1))
    attend = loss.model.model.layers[1].self_attn.attend
    assert not hasattr(attend, "bprop") and attend.scores == ms.float16
    assert attend.product.attrs["in_strategy"] == ((3, 2, 1, 1), (3, 2, 1, 1))


def training(**changes):
    """A configuration of a cut model, not read from a file."""
    config = {
        "version": 1,
        "name": "cut",
        "model": {"family": "llama", "hidden_size": 16, "layers": 4, "heads": 4, "max_length": 24},
        "tokenizer": {"train": {"vocab_size": 300}},
        "data": {"train": ["a.txt"], "sequence_length": 12},
        "optimizer": {"learning_rate": 1e-3},
        "precision": {"level": "O0"},
        "steps": 100,
        "batch_size": 4,
        "parallel": {"data": 2, "model": 2, "pipeline": 2, "micro_batches": 2},
    }
    return TrainConfig.model_validate({**config, **changes})


def test_layers_go_to_stages_in_equal_runs():
    config = training()
    spec = config.model.spec(40)
    assert stages(config.parallel, spec) == {
        "model.model.embed_tokens": 0,
        **{f"model.model.layers.{layer}": layer // 2 for layer in range(4)},
        "model.model.norm": 1,
    }
    assert stages(ParallelConfig(model=2), spec) == {}
    piped = sharded_loss(config, spec)
    assert piped.micro_size == 2
    found = dict(piped.network.cells_and_names())
    for name, stage in stages(config.parallel, spec).items():
        assert found[name].pipeline_stage == stage
    learned = ModelConfig(family="gpt2", hidden_size=16, layers=4, heads=4, max_length=24, tied_head=False)
    table = stages(config.parallel, learned.spec(40))
    assert table["model.model.embed_positions"] == 0 and table["model.lm_head"] == 1


def test_the_context_is_told_what_was_declared():
    settings = context_settings(
        ParallelConfig(
            data=2, model=2, pipeline=2, micro_batches=2, optimizer_shard=True, enable_alltoall=True
        )
    )
    try:
        ms.set_auto_parallel_context(**settings)
        told = {name: ms.get_auto_parallel_context(name) for name in settings}
        assert tuple(tuple(cuts) for cuts in told.pop("dataset_strategy")) == ((2, 1),) * 5
        assert told == {name: value for name, value in settings.items() if name != "dataset_strategy"}
    finally:
        ms.reset_auto_parallel_context()
    assert settings["device_num"] == 8 and settings["dataset_strategy"] == ((2, 1),) * 5
    assert context_settings(ParallelConfig(data=2)) == {
        "device_num": 2,
        "gradients_mean": False,
        "parallel_mode": "data_parallel",
    }


def test_dropout_and_cut_models_dont_go_together():
    model = {"family": "llama", "hidden_size": 16, "layers": 4, "heads": 4, "max_length": 24, "dropout": 0.1}
    with pytest.raises(ValidationError, match=r"model.dropout: its masks are drawn for whole models"):
        training(model=model)
    training(model=model, parallel={"data": 2})


def test_gradients_of_the_cells_without_a_written_derivative_are_the_same():
    """What MindSpore derives for a cut model, against the hand-written derivatives of the others."""
    spec = spec_of("llama-grouped-untied-window")
    results = []
    for parallel in (ParallelConfig(), CUT):
        loss = NllCell(random_model(spec))
        apply_sharding(loss, parallel, spec)
        loss.model.set_train(True)

        class Gradients(nn.Cell):
            def __init__(self, inner):
                super().__init__(auto_prefix=False)
                self.differentiate = ms.value_and_grad(inner, None, inner.trainable_params())

            def construct(self, ids, targets, positions, segments, weights):
                return self.differentiate(ids, targets, positions, segments, weights)

        results.append(Gradients(loss)(*inputs())[1])
    for written, derived in zip(*results, strict=True):
        scale = np.abs(written.asnumpy()).max()
        assert np.abs(written.asnumpy() - derived.asnumpy()).max() <= 1e-5 * scale + 1e-6


def test_the_graph_of_a_cut_model_is_compiled_and_the_run_ends():
    """On one device, where MindSpore doesn't look at the strategies: the rest of the way that Ascend takes."""
    config = training(parallel={"data": 2, "model": 2, "recompute": "selective"})
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(
        InputError, match=r"the graph of the cut model compiles, but this version doesn't train it"
    ):
        compile_sharded(config, config.model.spec(40))
