"""What must hold for every model and cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.planning.memory import fits, plan_training
from trainer.planning.settings import DeviceMemory, Strategy, Training
from trainer.planning.shapes import ModelShape

BARE = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)
FULL = DeviceMemory()

shapes = st.builds(
    lambda heads, size, layers, inner, gated, tied, bias: ModelShape(
        hidden_size=16 * heads * size,
        layers=8 * layers,
        heads=16 * heads,
        kv_heads=16,
        intermediate_size=16 * inner,
        vocab_size=4096,
        activation="swiglu" if gated else "gelu",
        tied_head=tied,
        bias=bias,
    ),
    st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.integers(8, 64), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
recomputes = st.sampled_from(["none", "selective", "attention", "full"])


@st.composite
def trainings(draw):
    model, pipeline = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4, 8]))
    strategy = Strategy(
        data=draw(st.sampled_from([1, 2, 8])),
        model=model,
        pipeline=pipeline,
        micro_batch_size=draw(st.integers(1, 4)),
        micro_batches=pipeline * draw(st.integers(1, 4)),
        sequence_parallel=model > 1 and draw(st.booleans()),
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(recomputes),
    )
    return Training(
        sequence_length=64 * draw(st.integers(1, 16)),
        strategy=strategy,
        gradient_type=draw(st.sampled_from(["fp16", "fp32", "fp32_accumulation", "full_fp32"])),
        flash_attention=draw(st.booleans()),
        dropout=draw(st.booleans()),
    )


def changed(training, **fields):
    return training.model_copy(update={"strategy": training.strategy.model_copy(update=fields)})


def largest(stages):
    """Phase and term → the most that any stage holds of it."""
    found = {}
    for stage in stages:
        for phase, terms in stage.phases.items():
            for term, value in terms.items():
                found[phase, term] = max(found.get((phase, term), 0.0), value)
    return found


def no_term_rises(shape, before, after):
    old, new = (largest(plan_training(shape, training, BARE)) for training in (before, after))
    for key, value in new.items():
        assert value <= old.get(key, 0.0) * (1 + 1e-12) + 1e-9, (key, old.get(key), value)


@settings(max_examples=60, deadline=None)
@given(shapes, trainings())
def test_sharding_the_states_never_raises_a_term(shape, training):
    for zero in range(training.strategy.zero_stage, 3):
        no_term_rises(shape, changed(training, zero_stage=zero), changed(training, zero_stage=zero + 1))
    no_term_rises(shape, training, changed(training, data=2 * training.strategy.data))


@settings(max_examples=60, deadline=None)
@given(shapes, trainings())
def test_cutting_matrices_or_the_sequence_never_raises_a_term(shape, training):
    no_term_rises(shape, training, changed(training, model=2 * training.strategy.model))
    if training.strategy.model > 1:
        plain = changed(training, sequence_parallel=False)
        no_term_rises(shape, plain, changed(training, sequence_parallel=True))


@settings(max_examples=60, deadline=None)
@given(shapes, trainings(), st.floats(0.1, 500), st.floats(1, 4))
def test_more_memory_never_makes_a_plan_infeasible(shape, training, memory_gib, factor):
    total = max(stage.total_mib for stage in plan_training(shape, training, FULL))
    order = ["doesn't fit", "too close", "fits"]
    less, more = (order.index(fits(total, memory_gib * f, 0.05)) for f in (1, factor))
    assert more >= less


@settings(max_examples=60, deadline=None)
@given(shapes, trainings())
def test_more_recomputation_never_keeps_more(shape, training):
    def kept(recompute):
        stages = plan_training(shape, changed(training, recompute=recompute), BARE)
        return sum(stage.phases["backward"].get("activations", 0.0) for stage in stages)

    assert kept("full") <= kept("attention") <= kept("selective") <= kept("none")


@settings(max_examples=60, deadline=None)
@given(shapes, trainings())
def test_terms_add_up_and_none_is_negative(shape, training):
    for stage in plan_training(shape, training, FULL):
        assert all(value > 0 for terms in stage.phases.values() for value in terms.values())
        assert stage.total_mib == max(sum(terms.values()) for terms in stage.phases.values())
        assert stage.pool_mib(fragments=False) <= stage.pool_mib(fragments=True) <= stage.total_mib
