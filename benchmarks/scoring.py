"""Tokens per second of evalkit against lm-evaluation-harness on the same weights, texts, windows and threads.

    EVALKIT_PEERS_PYTHON=.../bin/python python -m benchmarks.scoring SOURCE --corpus FILE.txt --out result.json

SOURCE is what `trainer convert` takes. Texts are cut from the corpus: short ones of 20 to 60 tokens, long ones of 1,000.
Both sides tokenise within the measured time and load the model outside it; each side takes the best of five passes,
and the peer the best of its batch sizes. Each measurement has a process of its own, so that peak memory is its own.
The load average before each says whether the machine was free.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PEERS_VARIABLE = "EVALKIT_PEERS_PYTHON"
PEER_SCRIPT = Path(__file__).with_name("peer_side.py")
LENGTH = 512
_PASSES = 5
_PEER_BATCHES: tuple[int | str, ...] = (1, 8, 32, "auto")
_SHORT, _LONG = (20, 60), (1000, 1000)


def run_side(command: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Run one side in a process of its own.

    Raises:
        RuntimeError: it failed; its last lines are in the message.
    """
    load = os.getloadavg()[0]
    done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**result, "load_average": round(load, 2)}


def own_command() -> list[str]:
    """Our side."""
    return [sys.executable, "-m", "benchmarks.own_side"]


def peer_command(python: str) -> list[str]:
    """The peer's side, with the Python of its environment."""
    return [python, str(PEER_SCRIPT)]


def cut_texts(corpus: str, tokenizer: Any, sizes: tuple[int, int], tokens: int, seed: int) -> list[str]:
    """Pieces of the corpus, stripped, of `sizes` tokens (from, to), `tokens` in all at the least."""
    generator = np.random.default_rng(seed)
    encoded = tokenizer.encode(corpus[: 40 * tokens])
    starts, data = encoded.starts, corpus[: 40 * tokens].encode()
    texts, place, total = [], 0, 0
    while total < tokens and place + sizes[1] < len(starts):
        size = int(generator.integers(sizes[0], sizes[1] + 1))
        piece = data[starts[place] : starts[place + size]].decode("utf-8", "ignore").strip()
        if piece:
            texts.append(piece)
        place, total = place + size, total + size
    return texts


def compare(source: Path, corpus: Path, tokens: int, seed: int, python: str) -> dict[str, Any]:
    """Measure both sides on short and long texts of the corpus."""
    from benchmarks.hf_folder import write_hf_folder
    from trainer.convert import convert
    from trainer.export.bundle import export_bundle

    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = convert(source, Path(scratch) / "checkpoint")
        bundle = export_bundle(checkpoint, Path(scratch) / "bundle", formats=["mindir", "onnx"])
        write_hf_folder(checkpoint, Path(scratch) / "hf")
        model, prefix = bundle.model, bundle.tokenizer.prefix_token
        shared = {
            "length": min(LENGTH, model.max_length),
            "prefix_token": 0 if prefix is None else prefix,
            "passes": _PASSES,
            "threads": len(os.sched_getaffinity(0)),
            "matmul": (1024, model.hidden_size, model.intermediate_size),
            "memory_limit_mib": _free_mib() // 2,
        }
        # Two operations for each weight that takes part in a matrix product; attention isn't counted.
        weights = model.parameters - (0 if model.tied_head else model.vocab_size * model.hidden_size)
        result: dict[str, Any] = {"model": bundle.manifest.name, "threads": shared["threads"]}
        for kind, sizes in (("short", _SHORT), ("long", _LONG)):
            texts = cut_texts(corpus.read_text(encoding="utf-8"), bundle.tokenizer, sizes, tokens, seed)
            settings = {**shared, "texts": texts}
            own = {
                backend: run_side(own_command(), {**settings, "model": str(bundle.path), "backend": backend})
                for backend in ("mindir", "onnx")
            }
            peer = {
                batch: run_side(
                    peer_command(python),
                    {**settings, "model": str(Path(scratch) / "hf"), "batch_size": batch},
                )
                for batch in _PEER_BATCHES
            }
            result[kind] = _summary(texts, own, peer, weights)
        return result


def _summary(
    texts: list[str], own: dict[str, dict[str, Any]], peer: dict[int | str, dict[str, Any]], weights: int
) -> dict[str, Any]:
    best = min(peer, key=lambda batch: peer[batch]["seconds"])
    reference = _figures(peer[best], weights)
    return {
        "texts": len(texts),
        "tokens": peer[best]["tokens"],
        "peer": {**reference, "batch_size": best, "batch_size_used": peer[best]["batch_size"]},
        "peer_tokens_per_s_by_batch": {
            batch: round(side["tokens"] / side["seconds"], 1) for batch, side in peer.items()
        },
        **{name: _figures(side, weights) for name, side in own.items()},
        "ratio": {
            name: round(side["tokens"] / side["seconds"] / reference["tokens_per_s"], 3)
            for name, side in own.items()
        },
        "peak_memory_ratio": {
            name: round(side["peak_mib"] / peer[best]["peak_mib"], 3) for name, side in own.items()
        },
        "relative_difference_of_nll": {
            name: abs(sum(side["nll"]) / sum(peer[best]["nll"]) - 1) for name, side in own.items()
        },
    }


def _figures(side: dict[str, Any], weights: int) -> dict[str, float]:
    rate = side["tokens"] / side["seconds"]
    return {
        "tokens_per_s": round(rate, 1),
        "peak_mib": round(side["peak_mib"], 1),
        "matmul_gflops": round(side["matmul_gflops"], 1),
        "share_of_matmul": round(2e-9 * weights * rate / side["matmul_gflops"], 3),
        "load_average": side["load_average"],
    }


def _free_mib() -> int:
    return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) // 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="Hugging Face folder or GGUF file")
    parser.add_argument("--corpus", type=Path, required=True, help="plain text in UTF-8")
    parser.add_argument("--tokens", type=int, default=20000, help="of each kind of text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    python = os.environ.get(PEERS_VARIABLE)
    if python is None:
        parser.error(
            f"set {PEERS_VARIABLE} to the Python of an environment with lm-eval, transformers, torch"
        )
    result = json.dumps(
        compare(options.source, options.corpus, options.tokens, options.seed, python), indent=2
    )
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
