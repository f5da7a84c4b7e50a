"""The linear layer."""

from mindspore import nn


def dense(inputs: int, outputs: int, *, bias: bool) -> nn.Dense:
    """y = x · weightᵀ + bias, weight (outputs, inputs); zero until `initialise` or `load_weights` fills it."""
    return nn.Dense(inputs, outputs, weight_init="zeros", bias_init="zeros", has_bias=bias)
