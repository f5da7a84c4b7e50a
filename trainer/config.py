"""The training configuration, `version: 1` (contracts: trainer.example.yaml)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from evalkit.bundle import ModelSpec
from evalkit.yaml_source import YamlSource
from trainer.configuration.data import DataConfig
from trainer.configuration.optimizer import OptimizerConfig
from trainer.configuration.parallel import ParallelConfig, check_parallel
from trainer.configuration.precision import PrecisionConfig
from trainer.configuration.running import CheckpointConfig, EvaluationConfig, ProfileConfig
from trainer.configuration.strict import Listed, Positive, Strict

# Positions of one batch: its arrays alone are 80 MiB, and activations are many times that.
_MOST_POSITIONS = 1 << 22


class ModelConfig(Strict):
    """The architecture; what is left out follows the family.

    Attributes:
        vocab_size: checked against the tokenizer, which decides.
        vocab_multiple: while it trains, the model's vocabulary is filled up to a multiple of this (16 suits Ascend's
            matrix unit). The rows added stay zero, take no part in the softmax, and are in no checkpoint.
    """

    family: Literal["llama", "gpt2"]
    hidden_size: Positive
    layers: int = Field(gt=0, le=1024)
    heads: Positive
    kv_heads: Positive | None = None
    intermediate_size: Positive | None = None
    vocab_size: Positive | None = None
    vocab_multiple: Positive = 1
    max_length: int = Field(gt=1)
    attention_window: Positive | None = None
    norm: Literal["rmsnorm", "layernorm"] | None = None
    norm_eps: float = Field(default=1e-5, gt=0)
    positions: Literal["rotary", "learned"] | None = None
    rope_theta: float = Field(default=10000.0, gt=0)
    activation: Literal["swiglu", "gelu"] | None = None
    tied_head: bool = True
    bias: bool | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelConfig":
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} isn't a multiple of heads {self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} isn't a multiple of kv_heads {self.kv_heads}")
        if self._positions == "rotary" and (self.hidden_size // self.heads) % 2:
            raise ValueError(f"rotary positions need an even head size, got {self.hidden_size // self.heads}")
        return self

    @property
    def _positions(self) -> Literal["rotary", "learned"]:
        return self.positions or ("rotary" if self.family == "llama" else "learned")

    def spec(self, vocab_size: int) -> ModelSpec:
        """The architecture with every default filled in and its parameters counted."""
        llama = self.family == "llama"
        # Three matrices of 8/3 hidden weigh as much as two of 4 hidden; rounded up to a multiple of 32.
        gated = -(-8 * self.hidden_size // 3 // 32) * 32
        activation = self.activation or ("swiglu" if llama else "gelu")
        plain = ModelSpec(
            family=self.family,
            hidden_size=self.hidden_size,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            intermediate_size=self.intermediate_size
            or (gated if activation == "swiglu" else 4 * self.hidden_size),
            vocab_size=vocab_size,
            max_length=self.max_length,
            attention_window=self.attention_window,
            norm=self.norm or ("rmsnorm" if llama else "layernorm"),
            norm_eps=self.norm_eps,
            positions=self._positions,
            rope_theta=self.rope_theta,
            activation=activation,
            tied_head=self.tied_head,
            bias=(not llama) if self.bias is None else self.bias,
            parameters=1,
            dtype="float32",
        )
        return plain.model_copy(update={"parameters": count_parameters(plain)})


def count_parameters(spec: ModelSpec) -> int:
    """Number of trained numbers in a model of this architecture; a tied head counts once."""
    hidden, inner, kv_size = spec.hidden_size, spec.intermediate_size, spec.kv_heads * spec.head_size
    attention = 2 * hidden * hidden + 2 * hidden * kv_size
    attention_bias = 2 * hidden + 2 * kv_size
    up_matrices = 2 if spec.activation == "swiglu" else 1
    feed_forward = (up_matrices + 1) * hidden * inner
    feed_forward_bias = up_matrices * inner + hidden
    norm = hidden if spec.norm == "rmsnorm" else 2 * hidden
    layer = attention + feed_forward + 2 * norm + (attention_bias + feed_forward_bias if spec.bias else 0)
    tables = spec.vocab_size + (spec.max_length if spec.positions == "learned" else 0)
    head = 0 if spec.tied_head else spec.vocab_size * hidden
    return tables * hidden + spec.layers * layer + norm + head


class TokenizerTraining(Strict):
    """Train a byte-level BPE on the training data."""

    vocab_size: int = Field(ge=262, le=1 << 20)


class TokenizerConfig(Strict):
    """Where the tokenizer comes from: trained here, or the tokenizer.json of an earlier run."""

    train: TokenizerTraining | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> "TokenizerConfig":
        if (self.train is None) == (self.file is None):
            raise ValueError("give exactly one of train and file")
        return self


class TrainConfig(Strict):
    """The whole file.

    Attributes:
        on_nan: a step whose loss isn't a number ends the run (stop) or leaves the weights as they are (skip).
        debug: run operation by operation (PyNative), with every gradient checked; slow.
        callbacks: `module:attr` each, a `mindspore.train.Callback`, its class or a function that makes one; modules
            come from the configuration's folder or are installed.
    """

    version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
    seed: int = Field(default=2024, ge=0, lt=2**32)
    out: str | None = None
    model: ModelConfig
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    precision: PrecisionConfig = PrecisionConfig()
    steps: Positive
    batch_size: Positive
    accumulation: Positive = 1
    on_nan: Literal["stop", "skip"] = "stop"
    debug: bool = False
    callbacks: Listed[str] = ()
    parallel: ParallelConfig = ParallelConfig()
    checkpoints: CheckpointConfig | None = None
    evaluation: EvaluationConfig | None = None
    profile: ProfileConfig = ProfileConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if self.data.sequence_length > self.model.max_length:
            raise ValueError(
                f"data.sequence_length {self.data.sequence_length} is above model.max_length {self.model.max_length}"
            )
        if self.batch_size * self.data.sequence_length > _MOST_POSITIONS:
            raise ValueError(
                f"batch_size {self.batch_size} rows of {self.data.sequence_length} positions are more than a step holds; "
                "give a smaller one, and accumulation"
            )
        if self.optimizer.warmup_steps >= self.steps:
            raise ValueError(
                f"optimizer.warmup_steps {self.optimizer.warmup_steps} isn't below steps {self.steps}"
            )
        if self.evaluation is not None and not self.data.validation:
            raise ValueError("evaluation needs data.validation; name a validation file")
        if (
            self.checkpoints is not None
            and self.checkpoints.keep_best is not None
            and self.evaluation is None
        ):
            raise ValueError("checkpoints.keep_best needs evaluation.every; add it")
        if self.debug and self.precision.level != "O0":
            raise ValueError("debug needs precision.level O0: PyNative has no mixed precision on CPU")
        if self.parallel.splits_the_model and self.model.dropout > 0:
            raise ValueError("model.dropout: its masks are drawn for whole models; set it to 0 for a cut one")
        check_parallel(self.parallel, self.model.spec(vocab_size=2), self.batch_size, debug=self.debug)
        return self


def load_config(path: Path) -> TrainConfig:
    """Read a training configuration.

    Raises:
        InputError: broken YAML, an unknown key, a wrong type or values that don't fit together; names the line.
    """
    return YamlSource(path).parse(TrainConfig)
