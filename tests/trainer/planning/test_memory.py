"""Terms of the memory plan: worked examples, and the formulae of the literature."""

import pytest

from evalkit.errors import InputError
from tests.trainer.planning.public_runs import GPT, GPT_52B, LLAMA2_7B, QWEN_7B, QWEN_72B
from trainer.planning.activations import kept_bytes, saved_tensors
from trainer.planning.memory import (
    communicators,
    fits,
    hccl_buffer_advice_mib,
    kv_bytes_a_token,
    plan_inference,
    plan_stages,
    plan_training,
    state_bytes,
)
from trainer.planning.parameters import layer_parameters, stage_parameters, total_parameters
from trainer.planning.settings import DeviceMemory, Inference, Strategy, Training
from trainer.planning.shapes import ModelShape

GIB = 2**30
BARE = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)


def states_gib(shape, gradient_type, **strategy):
    """Weights, gradients and optimizer of the first stage's share of all parameters."""
    training = Training(sequence_length=128, gradient_type=gradient_type, strategy=Strategy(**strategy))
    cut = training.strategy.model * training.strategy.pipeline
    return sum(state_bytes(training)) * total_parameters(shape) / cut / GIB


QWEN3_SMALL = ModelShape(
    hidden_size=1024, layers=28, heads=16, kv_heads=8, head_size=128, intermediate_size=3072, vocab_size=151936,
    tied_head=True, qk_norm=True,
)  # fmt: skip


def test_published_parameter_counts():
    assert total_parameters(QWEN3_SMALL) == 596_049_920
    assert total_parameters(QWEN_7B) == 7_615_616_512
    assert total_parameters(QWEN_72B) == 72_706_203_648
    assert total_parameters(LLAMA2_7B) == 6_738_415_616
    assert stage_parameters(GPT_52B, Strategy(model=4, pipeline=16), 0).total == 917_757_952
    assert stage_parameters(GPT_52B, Strategy(model=4, pipeline=16), 1).total == 805_560_320
    assert stage_parameters(GPT_52B, Strategy(model=4, pipeline=16), 15).total == 909_385_728


@pytest.mark.parametrize(("kind", "gib"), [("fp16", 113.5), ("fp32", 127.7), ("fp32_accumulation", 141.9)])
def test_the_7b_example(kind, gib):
    assert states_gib(QWEN_7B, kind) == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize(("kind", "gib"), [("fp16", 1083), ("fp32", 1219), ("fp32_accumulation", 1354)])
def test_the_72b_example(kind, gib):
    assert states_gib(QWEN_72B, kind) == pytest.approx(gib, abs=1)


@pytest.mark.parametrize(("zero", "gib"), [(0, 38.1), (1, 15.9)])
def test_the_72b_example_a_rank(zero, gib):
    assert states_gib(QWEN_72B, "fp32", data=8, model=8, pipeline=4, zero_stage=zero) == pytest.approx(
        gib, abs=0.05
    )


@pytest.mark.parametrize(("shape", "size"), [(LLAMA2_7B, 524_288), (QWEN_7B, 57_344), (QWEN_72B, 327_680)])
def test_kv_bytes_a_token(shape, size):
    assert kv_bytes_a_token(shape) == size


def test_a_key_head_is_copied_where_ranks_are_more_than_key_heads():
    assert kv_bytes_a_token(QWEN_7B, parts=4) == kv_bytes_a_token(QWEN_7B, parts=14) == 57_344 / 4


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("parts", [2, 8])
def test_gpt_activations_are_those_of_korthikanti(parts, sequence_parallel):
    """sbh(10 + 24/t + 5as/(ht)) with tensor, sbh/t (34 + 5as/h) with sequence parallelism."""
    s, b, h, a = 2048, 3, 6144, 48
    shape = ModelShape(hidden_size=h, layers=1, heads=a, intermediate_size=4 * h, vocab_size=51200, **GPT)
    strategy = Strategy(model=parts, micro_batch_size=b, sequence_parallel=sequence_parallel)
    training = Training(sequence_length=s, strategy=strategy, flash_attention=False, dropout=True)
    scores = 5 * a * s / h
    expected = (34 + scores) / parts if sequence_parallel else 10 + (24 + scores) / parts
    assert kept_bytes(shape, training) == pytest.approx(s * b * h * expected)
    for recompute, factor in (
        ("selective", expected - scores / parts),
        ("full", 2 / (parts if sequence_parallel else 1)),
    ):
        changed = training.model_copy(
            update={"strategy": strategy.model_copy(update={"recompute": recompute})}
        )
        assert kept_bytes(shape, changed) == pytest.approx(s * b * h * factor)


def test_grouped_queries_swiglu_and_flash_attention_are_counted_by_their_own_widths():
    training = Training(sequence_length=1024)
    sizes = {tensor.name: tensor.saved_bytes / 1024 for tensor in saved_tensors(QWEN_7B, training)}
    assert sizes["queries, keys, values"] == 2 * (3584 + 2 * 512)
    assert sizes["up projection"] == 2 * 2 * 18944 and sizes["activated"] == 2 * 18944
    assert sizes["attention context"] == 2 * 3584 + 4 * 28 and "attention scores" not in sizes


def test_interleaving_holds_the_published_share_more():
    """Narayanan et al.: 1 + (p - 1)/(p v) times as much on the first stage."""
    for pipeline, chunks in ((4, 2), (8, 3)):
        plain = Strategy(pipeline=pipeline, micro_batches=64).in_flight(0)
        interleaved = Strategy(pipeline=pipeline, micro_batches=64, interleave=chunks).in_flight(0)
        assert interleaved / plain == pytest.approx(1 + (pipeline - 1) / (pipeline * chunks))
    assert Strategy(pipeline=8, micro_batches=3).in_flight(0) == 3
    assert Strategy(pipeline=8, micro_batches=20, schedule="gpipe").in_flight(7) == 20


def test_hccl_buffers_are_two_a_communicator():
    strategy = Strategy(data=2, model=2, pipeline=2)
    assert communicators(strategy, QWEN_7B, DeviceMemory()) == 4
    stage = plan_training(QWEN_7B, Training(sequence_length=128, strategy=strategy), DeviceMemory())[0]
    assert stage.terms_mib["hccl_buffers"] == 2 * 200 * 4
    assert (
        "hccl_buffers"
        not in plan_training(QWEN_7B, Training(sequence_length=128), DeviceMemory())[0].terms_mib
    )


def test_generation_holds_weights_and_cache():
    inference = Inference(sequences=8, length=4096, prefill_tokens=512)
    (rank,) = plan_inference(LLAMA2_7B, inference, BARE)
    assert rank.terms_mib["parameters"] == pytest.approx(6_738_415_616 * 2 / 2**20)
    assert rank.terms_mib["kv_cache"] == 8 * 4096 * 524_288 / 2**20


def test_only_the_fullest_stages_are_enough_where_stages_are_equal():
    training = Training(sequence_length=512, strategy=Strategy(pipeline=7, micro_batches=9))
    every, some = (
        max(s.total_mib for s in plan(QWEN_7B, training, BARE)) for plan in (plan_training, plan_stages)
    )
    assert every == some


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"model": 3}, "heads 28 isn't a multiple of model 3"),
        ({"pipeline": 40, "micro_batches": 40}, "pipeline 40 is above the model's 28 layers"),
        ({"pipeline": 2, "layers_per_stage": (14, 15)}, "adds up to 29"),
        ({"pipeline": 4, "interleave": 3}, "interleave 3"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_in_one_line(strategy, words):
    with pytest.raises(InputError, match=words):
        plan_training(QWEN_7B, Training(sequence_length=128, strategy=Strategy(**strategy)), BARE)


def test_the_verdict_knows_its_own_error():
    assert (
        fits(1024, 1, 0.05) == "too close"
        and fits(900, 1, 0.05) == "fits"
        and fits(1025, 1, 0.05) == "doesn't fit"
    )


def test_layer_parameters_are_shared_but_for_norms_and_biases_behind_a_reduction():
    whole, half = layer_parameters(GPT_52B, 1), layer_parameters(GPT_52B, 2)
    kept_whole = 4 * 8192 + 2 * 8192
    assert half == (whole - kept_whole) / 2 + kept_whole


def test_devices_that_share_a_generation_share_weights_and_cache():
    one, four = (
        plan_inference(LLAMA2_7B, Inference(model=parts, sequences=8, length=4096), BARE)[0]
        for parts in (1, 4)
    )
    assert four.terms_mib["kv_cache"] == one.terms_mib["kv_cache"] / 4
    assert four.terms_mib["parameters"] == pytest.approx(one.terms_mib["parameters"] / 4, rel=0.001)


def test_the_vendors_advice_for_the_buffer():
    """ceil(micro-batch · sequence · hidden · bytes / 2^20)."""
    training = Training(sequence_length=10240, strategy=Strategy(model=2))
    assert hccl_buffer_advice_mib(QWEN_7B, training) == 70
