"""From a configuration to a model that is ready to train."""

import os

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from trainer.config import TrainConfig
from trainer.configuration.parallel import check_vocabulary
from trainer.model.decoder import CausalLM
from trainer.model.weights import initialise
from trainer.precision import apply_precision, check_precision
from trainer.recompute import apply_recompute
from trainer.step import TrainStep

# Float32 weight, gradient and two moments of Adam.
_BYTES_A_PARAMETER = 16


def check_model(spec: ModelSpec, config: TrainConfig) -> None:
    """Whether the model fits its tokenizer, its devices and this machine.

    Raises:
        InputError: it doesn't.
    """
    declared = config.model.vocab_size
    if declared is not None and declared != spec.vocab_size:
        raise InputError(
            f"model.vocab_size: {declared}, but the tokenizer has {spec.vocab_size} tokens; leave the key out or "
            "correct it"
        )
    multiple = config.model.vocab_multiple
    check_vocabulary(config.parallel, -(-spec.vocab_size // multiple) * multiple)
    needed = spec.parameters * _BYTES_A_PARAMETER / config.parallel.model / config.parallel.pipeline
    if needed > (there := _memory_bytes()):
        raise InputError(
            f"model: {spec.parameters:,} parameters need {needed / 2**30:,.0f} GiB for weights, gradients and moments "
            f"alone, this machine has {there / 2**30:,.0f} GiB; make hidden_size or layers smaller"
        )


def build_step(config: TrainConfig, spec: ModelSpec, rank: int) -> TrainStep:
    """The training step of a model with seeded start values, in training mode; MindSpore must be started."""
    check_precision(config.precision)
    model = CausalLM(spec, config.model.dropout, config.model.vocab_multiple)
    initialise(model, spec, config.seed)
    apply_precision(model, config.precision)
    apply_recompute(model, config.parallel)
    model.set_train(True)
    return TrainStep(model, config, rank)


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return float("inf")  # a system that doesn't say
