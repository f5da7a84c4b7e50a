"""Mutation testing of the gate: does a test notice when the judge, the comparison or the policy is changed a little?

    python -m benchmarks.gate_mutants FOLDER [--jobs 2]

Needs mutmut (3.8), in an environment of its own that has evalkit's dependencies too, or on PYTHONPATH; it is no dependency
of evalkit. What is mutated and which tests are run stands in pyproject.toml, [tool.mutmut]. FOLDER gets a copy of the
package and of the gate's tests, so that nothing here is touched; `mutmut results` and `mutmut show NAME` in it tell of the
survivors. By hand or at night: it takes minutes. Prints counts as JSON.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# tests/conftest.py stays out: it brings in sandbox and trainer.
_COPIED = ("evalkit", "tests/__init__.py", "tests/support", "tests/evalkit/gate", "pyproject.toml")


def prepare(folder: Path) -> None:
    """Copy what the gate's tests need.

    Args:
        folder: must not exist.
    """
    helpers = [str(path.relative_to(ROOT)) for path in (ROOT / "tests/evalkit").glob("*.py")]
    for name in (*_COPIED, *(name for name in helpers if not Path(name).name.startswith("test_"))):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def counts(results: str) -> dict[str, int]:
    """Mutants by status in what `mutmut results --all true` prints: one `name: status` a line."""
    found = [line.rpartition(": ")[2].strip() for line in results.splitlines() if ": " in line]
    return dict(Counter(found))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder for the copy")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists; name a new folder")
    prepare(options.folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, "-m", "mutmut"]
    subprocess.run(
        [*command, "run", "--max-children", str(options.jobs)],
        cwd=options.folder,
        env=environment,
        stdout=sys.stderr,
        check=True,
    )
    listed = subprocess.run(
        [*command, "results", "--all", "true"],
        cwd=options.folder,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = counts(listed.stdout)
    total = sum(found.values())
    share = found.get("killed", 0) / total if total else None
    sys.stdout.write(json.dumps({"mutants": total, "killed_share": share, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
