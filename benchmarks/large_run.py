"""Memory and time of large runs: 2,000 texts, 20,000 texts, and 20,000 with one of 500,000 tokens among them.

    python -m benchmarks.large_run MODEL [--backend mindir|onnx] [--out FILE.json]

MODEL is a Hugging Face folder or GGUF file of a small model. Each run is `evalkit score --out` in a process of its own;
the figures are those of the whole process, model and runtime included, as the Linux kernel counts them.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalkit.tokenization import TextTokenizer

_STORY = """
    once upon a time there was little girl named lily who liked to play outside in the park with her friend
    tom and big red ball they saw dog it very happy said look mom day sun bird tree house good fun went home
"""
_WORDS = _STORY.split()
LONG_TOKENS = 500_000


def texts(count: int, seed: int) -> list[str]:
    """Made-up texts of 5 to 30 words, all different, and among them those that can't be scored."""
    source = random.Random(seed)
    made = [
        f"{number} " + " ".join(source.choice(_WORDS) for _ in range(source.randint(5, 30)))
        for number in range(count - 4)
    ]
    return [*made, "", " \n\t ", "a\0b", "a\ud800b"]


def long_text(tokenizer: "TextTokenizer", tokens: int, seed: int) -> str:
    """A made-up text of at least `tokens` tokens."""
    source = random.Random(seed)
    parts: list[str] = []
    found = 0
    # The parts have a few tokens less together than apart.
    while found < 1.01 * tokens:
        part = " ".join(source.choice(_WORDS) for _ in range(10_000))
        found += len(tokenizer.encode(part).ids)
        parts.append(part)
    return " ".join(parts)


def write_texts(path: Path, contents: list[str]) -> None:
    """A data file; ids are the places in it."""
    lines = (json.dumps({"id": f"t{index:06d}", "text": text}) for index, text in enumerate(contents))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# The peak is that of this program alone: what getrusage tells includes the process that started it.
_SIDE = """
import atexit, pathlib, sys
place = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: place.write_text(pathlib.Path("/proc/self/status").read_text()))
from evalkit.cli import main
main()
"""


def measure(words: list[str], scratch: Path) -> dict[str, Any]:
    """Run `evalkit WORDS --json` and return its peak memory, its time and what it printed of the texts."""
    environment = {**os.environ, "EVALKIT_HOME": str(scratch / "home")}
    status = scratch / "status"
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _SIDE, str(status), *words, "--json"],
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    seconds = time.monotonic() - begin
    return {
        "peak_mib": round(int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024, 1),
        "seconds": round(seconds, 1),
        "conservation": json.loads(done.stdout)["conservation"],
    }


def large_runs(bundle: Path, backend: str, scratch: Path, sizes: tuple[int, int]) -> dict[str, Any]:
    """Score few texts, many, many with a long one; then the last again, from the result cache.

    Args:
        bundle: of the model.
        backend: what scores it.
        scratch: an empty folder.
        sizes: the two numbers of texts.
    """
    from evalkit.bundle import load_bundle

    few, many = sizes
    long = long_text(load_bundle(bundle).tokenizer, LONG_TOKENS, seed=1)
    contents = {
        "few": texts(few, seed=2),
        "many": texts(many, seed=3),
        "many_and_a_long_one": [*texts(many - 1, seed=4), long],
    }
    results: dict[str, Any] = {"model": str(bundle.name), "backend": backend}
    for name, made in contents.items():
        data = scratch / f"{name}.jsonl"
        write_texts(data, made)
        words = ["score", "--model", str(bundle), "--data", str(data), "--backend", backend]
        results[name] = measure([*words, "--out", str(scratch / f"run-{name}")], scratch)
        results[name]["texts"] = len(made)
    results["again_from_the_cache"] = measure([*words, "--out", str(scratch / "run-again")], scratch)
    growth = results["many"]["peak_mib"] - results["few"]["peak_mib"]
    results["kib_a_text"] = round(growth * 1024 / (many - few), 2)
    return results


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="Hugging Face folder or GGUF file")
    parser.add_argument("--backend", choices=["mindir", "onnx"], default="onnx")
    parser.add_argument("--few", type=int, default=2_000, help="texts of the small run")
    parser.add_argument("--many", type=int, default=20_000, help="texts of the large runs")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    from trainer.convert import convert
    from trainer.export.bundle import export_bundle

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        checkpoint = convert(options.source, scratch / "checkpoint")
        bundle = export_bundle(checkpoint, scratch / "bundle", formats=["mindir", "onnx"])
        found = large_runs(bundle.path, options.backend, scratch, (options.few, options.many))
    result = json.dumps({**found, "model": bundle.manifest.name}, indent=2)
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
