"""Model folders: Hugging Face's (Llama, GPT-2) and MindFormers' (legacy and Mcore names)."""

from pathlib import Path

from evalkit.bundle import ModelSpec
from evalkit.canonical import sha256_file
from trainer.convert.architecture import WRONG_VALUES, Config, read_spec
from trainer.convert.hf_tokenizer import TOKENIZER_FILE, read_folder_tokenizer
from trainer.convert.mapping import to_ours
from trainer.convert.mindformers import fused_layouts, read_yaml_config, to_huggingface_config
from trainer.convert.names import Format, format_of
from trainer.convert.source import SourceModel, read_json, refusal
from trainer.convert.weight_files import read_weights, weight_files

CONFIG = "config.json"

_HUGGINGFACE = {"llama": Format.HF_LLAMA, "gpt2": Format.HF_GPT2}
_FAMILIES = {
    Format.HF_LLAMA: "llama",
    Format.HF_GPT2: "gpt2",
    Format.MINDFORMERS_LLAMA: "llama",
    Format.MINDFORMERS_GPT2: "gpt2",
    Format.MCORE: "llama",
}


def read_folder(folder: Path, file: Path | None = None) -> SourceModel:
    """Read a folder as `save_pretrained` or MindFormers write it.

    Args:
        folder: holds config.json or MindFormers' YAML, tokenizer.json and weights.
        file: the one file with the weights; None: found in the folder.

    Raises:
        InputError: incomplete, unsafe, or an architecture that this version doesn't compute.
    """
    config_file, config = _config(folder)
    try:
        translated = to_huggingface_config(config_file, config)
    except (KeyError, *WRONG_VALUES) as error:
        raise refusal(
            config_file,
            f"a value is missing or of the wrong kind ({error})",
            "take an undamaged copy of the model",
        ) from None
    model = read_spec(config_file, translated)
    tokenizer = read_folder_tokenizer(folder, config)
    files = weight_files(folder) if file is None else [file]
    tensors = read_weights(files)
    kind = _format(folder if file is None else file, set(tensors), model)
    where = folder if len(files) > 1 else files[0]
    return SourceModel(
        name=folder.resolve().name,
        model=model,
        weights=to_ours(where, kind, tensors, model, fused_layouts(kind, config)),
        tokenizer_json=tokenizer.json,
        prefix_token=tokenizer.prefix_token,
        end_token=tokenizer.end_token,
        chat_template=tokenizer.chat_template,
        origin={
            "format": kind.value,
            "files": {
                part.name: sha256_file(part) for part in (config_file, folder / TOKENIZER_FILE, *files)
            },
        },
    )


def _config(folder: Path) -> tuple[Path, Config]:
    file = folder / CONFIG
    if file.is_file():
        return file, read_json(file)
    configurations = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(configurations) == 1:
        return configurations[0], read_yaml_config(configurations[0])
    problem = f"{len(configurations)} YAML files" if configurations else "no such file"
    raise refusal(
        file,
        problem,
        "lay the model's config.json, or the one YAML that MindFormers was run with, beside the weights",
    )


def _format(where: Path, names: set[str], model: ModelSpec) -> Format:
    kind = format_of(names)
    if kind is None:
        # Nothing is recognised: the messages about single weights are to speak of what the configuration promises.
        return _HUGGINGFACE[model.family]
    if _FAMILIES.get(kind) != model.family:
        raise refusal(
            where,
            f"the weights have the names of {kind.value}, the configuration is of the family {model.family}",
            "weights and configuration belong to different models",
        )
    return kind
