"""`trainer`: train, export, try and diagnose. A command is a thin shell over a function."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from evalkit.backends.runtime import load_mindspore
from evalkit.console import run, say
from evalkit.errors import ExitCode, IncompleteError, InputError
from evalkit.runs.interruption import terminable
from trainer.doctor_cli import doctor
from trainer.guide_cli import plan
from trainer.pareto_cli import pareto
from trainer.planning_cli import memory, screen
from trainer.spikes_cli import spikes
from trainer.stress_cli import stress
from trainer.timeline_cli import timeline


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evalkit")
def cli() -> None:
    """Train a decoder-only language model with MindSpore and export it as an evalkit bundle."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run folder; default: the configuration's `out`."
)
@click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint in the run folder.")
@click.option("--profile", is_flag=True, help="Record MindSpore's profiler into the run folder's profile/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def train(config: Path, out: Path | None, resume: bool, profile: bool, as_json: bool) -> None:
    """Train from CONFIG.yaml; writes checkpoints/step-N/ and log.jsonl into the run folder."""
    from trainer.config import load_config

    settings = load_config(config)
    if out is None:
        if settings.out is None:
            raise InputError(f"{config}: out: names no run folder; add it or give --out DIR")
        out = config.parent / settings.out
    try:
        with terminable(), stdout_for_the_result():
            load_mindspore()
            from trainer.loop import train as train_model

            summary = train_model(settings, config.parent, out, resume=resume, profile=profile)
    except KeyboardInterrupt:
        raise IncompleteError("interrupted before the first step; start it again") from None
    except IncompleteError as error:
        raise IncompleteError(f"{error}; go on with `trainer train {config} --out {out} --resume`") from None
    if as_json:
        result = {
            "checkpoint": str(summary.checkpoint),
            "steps": summary.steps,
            "final_loss": summary.final_loss,
            "perplexity": summary.perplexity,
            "seconds": round(summary.seconds, 3),
            "skipped": summary.skipped,
        }
        click.echo(json.dumps(result))
        return
    if summary.skipped:
        say(
            f"warning: {summary.skipped} steps changed no weight (gradients that aren't finite; `overflow` in log.jsonl); "
            "a few at the start calibrate the loss scale, many mean that nothing is learnt"
        )
    loss = "not known" if summary.final_loss is None else f"{summary.final_loss:.4f}"
    say(f"trained {summary.steps} steps in {summary.seconds:.0f} s, final loss {loss}")
    click.echo(f"checkpoint: {summary.checkpoint}")


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the baseline.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def baseline(config: Path, out: Path, as_json: bool) -> int:
    """Train 3 steps on 100 samples of CONFIG with everything recorded; a second run says what differs."""
    from trainer.config import load_config

    settings = load_config(config)
    from trainer.baseline import run_baseline

    with stdout_for_the_result():
        result = run_baseline(settings, config.parent, out)
    trends = [trend.model_dump() for trend in result.record.trends]
    found = result.differences
    if as_json:
        differences = None if found is None else [asdict(difference) for difference in found]
        fields = {"baseline": str(result.folder), "differences": differences, "trends": trends}
        click.echo(json.dumps(fields, ensure_ascii=False))
    else:
        for trend in result.record.trends:
            click.echo(f"{'ok' if trend.holds else 'NOT AS EXPECTED'}  {trend.name}: {trend.evidence}")
        for difference in found or []:
            click.echo(f"differs  {difference}")
        if found is not None and not found:
            click.echo("no difference to the first run")
        click.echo(f"baseline: {result.folder}")
    healthy = all(trend.holds for trend in result.record.trends)
    return int(ExitCode.OK if healthy and not found else ExitCode.FAIL)


@cli.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The folder to write; must not exist."
)
@click.option(
    "--to",
    "target",
    type=click.Choice(["checkpoint", "hf"]),
    default="checkpoint",
    show_default=True,
    help="What to write; hf is a Hugging Face folder.",
)
@click.option("--name", help="The model's name in the checkpoint; default: the source's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def convert(source: Path, out: Path, target: str, name: str | None, as_json: bool) -> None:
    """Convert SOURCE to a checkpoint, or to a Hugging Face folder.

    SOURCE is a Hugging Face or MindFormers folder of a Llama or GPT-2 model (or the file with its weights), a
    Llama-family GGUF file, a llama2.c .bin file or, with --to hf, a checkpoint.
    """
    from trainer.convert import convert as convert_model
    from trainer.convert import convert_to_huggingface

    if target == "hf":
        if name is not None:
            raise InputError("--name: a Hugging Face folder holds no name; leave it out")
        model = convert_to_huggingface(source, out)
    else:
        model = convert_model(source, out, name=name).meta.model
    if as_json:
        click.echo(json.dumps({target: str(out), "parameters": model.parameters}))
        return
    say(f"{model.parameters:,} parameters, {model.layers} layers of {model.hidden_size}")
    click.echo(f"{target}: {out}")


@cli.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Bundle folder; must not exist.")
@click.option(
    "--format", "formats", default="mindir", show_default=True, help="Graph formats, separated by commas."
)
@click.option(
    "--static", "buckets", multiple=True, metavar="ROWSxLENGTH", help="Static graphs beside the dynamic ones."
)
@click.option(
    "--parity-tolerance",
    type=click.FloatRange(min=0),
    default=1e-3,
    show_default=True,
    help="How far a log-probability may lie from the checkpoint's, in nats.",
)
@click.option("--attention-window", type=click.IntRange(min=1), help="Cut how far back a token sees.")
@click.option("--name", help="The bundle's name; default: the training run's.")
@click.option(
    "--logits", is_flag=True, help="Export a graph of raw logits too, for `evalkit score --logits`."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def export(
    checkpoint: Path,
    out: Path,
    formats: str,
    buckets: tuple[str, ...],
    parity_tolerance: float,
    attention_window: int | None,
    name: str | None,
    logits: bool,
    as_json: bool,
) -> None:
    """Export CHECKPOINT (a step-N folder, or a run folder: its last step) as an evalkit bundle."""
    from trainer.checkpoint import read_checkpoint
    from trainer.export.options import Bucket

    shapes = [Bucket.parse(text) for text in buckets]
    source = read_checkpoint(checkpoint)  # before MindSpore is loaded, so that a wrong path is told at once
    from trainer.export.bundle import export_bundle

    bundle = export_bundle(
        source,
        out,
        formats=formats.split(","),
        buckets=shapes,
        tolerance=_finite(parity_tolerance, "--parity-tolerance"),
        attention_window=attention_window,
        name=name,
        logits=logits,
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
@click.option(
    "--backend",
    type=click.Choice(["mindir", "onnx"]),
    help="What runs a bundle's graph; default: onnx on a CPU where the bundle has it, else mindir.",
)
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
    backend: Literal["mindir", "onnx"] | None,
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

    generator = load_generator(model, backend)
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


@contextmanager
def stdout_for_the_result() -> Iterator[None]:
    """Within the block whatever prints (callbacks, MindSpore's profiler in a process of its own) prints on stderr."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _finite(value: float, option: str) -> float:
    # click's ranges let NaN through: every comparison with it is false.
    if not math.isfinite(value):
        raise InputError(f"{option} {value}: a finite number is needed")
    return value


cli.add_command(doctor)
cli.add_command(memory)
cli.add_command(pareto)
cli.add_command(plan)
cli.add_command(screen)
cli.add_command(spikes)
cli.add_command(stress)
cli.add_command(timeline)


def main() -> None:
    """Entry point."""
    run(cli)
