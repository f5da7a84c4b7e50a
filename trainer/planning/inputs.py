"""CONFIG of `trainer memory`: a plan's own file, a Hugging Face config.json, or a training configuration."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource, yaml_value
from trainer.config import TrainConfig
from trainer.planning.settings import MemoryFile, ModelFile, Recompute, Strategy, Training
from trainer.planning.shapes import ModelShape, read_huggingface_shape
from trainer.regular_file import require_regular

_DEFAULT_LENGTH = 4096


def read_memory_file(path: Path, changes: tuple[str, ...] = ()) -> tuple[MemoryFile, ModelShape]:
    """The plan that a file describes, and its model's shape.

    Args:
        path: YAML of the plan (`training:` or `inference:`), a training configuration, a config.json or its folder.
        changes: FIELD=VALUE each, e.g. training.strategy.model=2; VALUE is YAML.

    Raises:
        InputError: unreadable, an unknown key or value, or a model that can't be counted.
    """
    require_regular(path)
    source: YamlSource | None = None
    if path.is_dir() or path.suffix == ".json":
        shape = read_huggingface_shape(path)
        length = min(_DEFAULT_LENGTH, shape.max_length)
        plan = MemoryFile(
            version=1,
            name=(path if path.is_dir() else path.parent).resolve().name,
            model=shape,
            training=Training(sequence_length=length),
        )
    else:
        source = YamlSource(path)
        if "tokenizer" in source.value:
            config = source.parse(TrainConfig)
            try:
                plan = training_plan(config, config.model.spec(_vocabulary(config, path)))
            except ValidationError as error:  # a training has no bounds, a plan has
                problem = error.errors(include_url=False)[0]
                where = ".".join(map(str, problem["loc"]))
                raise InputError(f"{path}: {where}: {problem['msg']} (got {problem['input']})") from None
        else:
            plan = source.parse(MemoryFile)
    if changes:
        plan = _changed(plan, changes)
    if isinstance(plan.model, ModelFile):
        return plan, read_huggingface_shape(path.parent / plan.model.config)
    return plan, plan.model


def _changed(plan: MemoryFile, changes: tuple[str, ...]) -> MemoryFile:
    content = plan.model_dump(exclude_unset=True)
    for change in changes:
        field, equals, text = change.partition("=")
        if not equals or not field:
            raise InputError(f"--set {change}: FIELD=VALUE is needed, e.g. training.strategy.model=2")
        try:
            value = yaml_value(text)
        except ValueError as error:
            raise InputError(f"--set {change}: {text!r} isn't a YAML value ({error})") from None
        *folders, last = field.split(".")
        place: Any = content
        for part in folders:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
            if not isinstance(place, dict):
                raise InputError(f"--set {change}: {part} has no fields")
        place[last] = value
    try:
        return MemoryFile.model_validate(content)
    except ValidationError as error:
        problem = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
        # Names of the alternatives of a union are no fields.
        where = ".".join(str(part) for part in problem["loc"] if not str(part)[:1].isupper())
        unknown = problem["type"] == "extra_forbidden"
        said = "unknown key; correct its name" if unknown else problem["msg"].removeprefix("Value error, ")
        raise InputError(f"--set: {where}: {said}") from None


def training_plan(config: TrainConfig, spec: ModelSpec) -> MemoryFile:
    """A run of this project: float32 weights, gradients and moments; the update copies the gradients once.

    At O2 some activations take half as much, so that the plan is then an upper bound.
    """
    multiple = config.model.vocab_multiple
    parallel = config.parallel
    # "selective" recomputes the whole attention of a layer here.
    recompute: Recompute = "attention" if parallel.recompute == "selective" else parallel.recompute
    strategy = Strategy(
        data=parallel.data,
        model=parallel.model,
        pipeline=parallel.pipeline,
        micro_batch_size=config.batch_size // parallel.micro_batches,
        micro_batches=parallel.micro_batches,
        zero_stage=1 if parallel.optimizer_shard else 0,
        recompute=recompute,
    )
    training = Training(
        sequence_length=config.data.sequence_length,
        strategy=strategy,
        gradient_type="full_fp32",
        accumulation_bytes=4 if config.accumulation > 1 else 0,
        step_copy_bytes=4,
        flash_attention=False,
        fused_activation=False,
        dropout=config.model.dropout > 0,
        attention_mask_bytes=4,
        logits_bytes=12,
    )
    shape = ModelShape(
        hidden_size=spec.hidden_size,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        intermediate_size=spec.intermediate_size,
        vocab_size=-(-spec.vocab_size // multiple) * multiple,
        max_length=spec.max_length,
        activation=spec.activation,
        norm=spec.norm,
        positions=spec.positions,
        tied_head=spec.tied_head,
        bias=spec.bias,
    )
    return MemoryFile(version=1, name=config.name, model=shape, training=training)


def _vocabulary(config: TrainConfig, path: Path) -> int:
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    if config.tokenizer.train is not None:
        return config.tokenizer.train.vocab_size
    from tokenizers import Tokenizer

    file = path.parent / str(config.tokenizer.file)
    if not file.is_file():
        raise InputError(f"{file}: no such file; correct tokenizer.file, or give model.vocab_size")
    return int(Tokenizer.from_file(str(file)).get_vocab_size())
