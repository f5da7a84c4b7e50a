"""`trainer`: train, export, try and diagnose. A command is a thin shell over a function."""

import json
import math
from pathlib import Path

import click

from evalkit.console import run, say
from evalkit.errors import InputError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evalkit")
def cli() -> None:
    """Train a decoder-only language model with MindSpore and export it as an evalkit bundle."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run folder; default: the configuration's `out`."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def train(config: Path, out: Path | None, as_json: bool) -> None:
    """Train from CONFIG.yaml; writes checkpoints/step-N/ and log.jsonl into the run folder."""
    from evalkit.errors import InputError
    from trainer.config import load_config

    settings = load_config(config)
    if out is None:
        if settings.out is None:
            raise InputError(f"{config}: out: names no run folder; add it or give --out DIR")
        out = config.parent / settings.out
    from trainer.loop import train as train_model

    summary = train_model(settings, config.parent, out)
    if as_json:
        result = {
            "checkpoint": str(summary.checkpoint),
            "steps": summary.steps,
            "final_loss": summary.final_loss,
            "perplexity": summary.perplexity,
            "seconds": round(summary.seconds, 3),
        }
        click.echo(json.dumps(result))
        return
    say(f"trained {summary.steps} steps in {summary.seconds:.0f} s, final loss {summary.final_loss:.4f}")
    click.echo(f"checkpoint: {summary.checkpoint}")


@cli.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Checkpoint folder; must not exist."
)
@click.option("--name", help="The model's name; default: the source's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def convert(source: Path, out: Path, name: str | None, as_json: bool) -> None:
    """Convert SOURCE (a Hugging Face folder of a Llama model, or a Llama-family GGUF file) to a checkpoint."""
    from trainer.convert import convert as convert_model

    checkpoint = convert_model(source, out, name=name)
    model = checkpoint.meta.model
    if as_json:
        click.echo(json.dumps({"checkpoint": str(out), "parameters": model.parameters}))
        return
    say(f"{model.parameters:,} parameters, {model.layers} layers of {model.hidden_size}")
    click.echo(f"checkpoint: {out}")


@cli.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Bundle folder; must not exist.")
@click.option(
    "--format", "formats", default="mindir", show_default=True, help="Graph formats, separated by commas."
)
@click.option("--attention-window", type=click.IntRange(min=1), help="Cut how far back a token sees.")
@click.option("--name", help="The bundle's name; default: the training run's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def export(
    checkpoint: Path,
    out: Path,
    formats: str,
    attention_window: int | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Export CHECKPOINT (a step-N folder, or a run folder: its last step) as an evalkit bundle."""
    from trainer.checkpoint import read_checkpoint

    source = read_checkpoint(checkpoint)  # before MindSpore is loaded, so that a wrong path is told at once
    from trainer.export.bundle import export_bundle

    bundle = export_bundle(
        source,
        out,
        formats=formats.split(","),
        attention_window=attention_window,
        name=name,
    )
    worst = max(parity.max_abs_logprob_diff for parity in bundle.manifest.parity.values())
    if as_json:
        result = {"bundle": str(out), "model_digest": bundle.model_digest, "max_abs_logprob_diff": worst}
        click.echo(json.dumps(result))
        return
    say(f"model {bundle.model_digest[:12]}, log-probabilities within {worst:.1e} nats of the checkpoint")
    click.echo(f"bundle: {out}")


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--chat", is_flag=True, help="Send the prompt as a user's message.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from the k most likely tokens only.")
@click.option("--top-p", type=click.FloatRange(min=0, min_open=True, max=1), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with token ids on stdout.")
def generate(
    model: Path,
    prompt: str,
    chat: bool,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    as_json: bool,
) -> None:
    """Continue a text with MODEL: a bundle, a step-N folder or a run folder."""
    from trainer.generate import generate as continue_text
    from trainer.generate import load_generator, prompt_ids
    from trainer.sampling import Sampling

    generator = load_generator(model)
    result = continue_text(
        generator,
        prompt_ids(generator.tokenizer, prompt, chat=chat),
        max_new_tokens=max_new_tokens,
        sampling=Sampling(_finite(temperature, "--temperature"), top_k, _finite(top_p, "--top-p")),
        seed=seed,
    )
    if as_json:
        fields = {
            "text": result.text,
            "token_ids": result.token_ids,
            "prompt_token_ids": result.prompt_ids,
            "finish_reason": result.finish_reason,
        }
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    click.echo(result.text)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to write; must not exist."
)
@click.option(
    "--ranks",
    "rank_map",
    type=click.Path(path_type=Path),
    help="YAML of `file pattern: rank`, for traces that don't say whose they are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object on stdout.")
def timeline(folder: Path, out: Path, rank_map: Path | None, as_json: bool) -> None:
    """Say where the time goes in DIR, a profiler's output folder (or one trace file); nothing is run.

    Writes cube.parquet, heatmap.html, trace.json (for ui.perfetto.dev) and findings.json.
    """
    from trainer.timeline.ranks import read_rank_map
    from trainer.timeline.run import analyse, write_analysis

    ranks = read_rank_map(rank_map) if rank_map is not None else None
    if out.exists():  # before minutes of reading
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    analysis = analyse(folder, ranks)
    write_analysis(analysis, out, folder.resolve().name)
    if as_json:
        click.echo(json.dumps(analysis.to_json(), ensure_ascii=False, allow_nan=False))
        return
    for note in analysis.notes():
        say(f"note: {note}")
    for finding in analysis.findings:
        click.echo(f"{finding.severity}: {finding.rule}: {finding.summary}")
        click.echo(f"  do: {finding.action}")
    if not analysis.findings:
        click.echo("no rule found anything")
    click.echo(f"report: {out / 'heatmap.html'}")


def _finite(value: float, option: str) -> float:
    # click's ranges let NaN through: every comparison with it is false.
    if not math.isfinite(value):
        raise InputError(f"{option} {value}: a finite number is needed")
    return value


def main() -> None:
    """Entry point."""
    run(cli)
