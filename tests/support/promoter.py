"""A process that promotes, for tests of several at once and of kills.

`python -m tests.support.promoter` runs the evalkit command whose words stand in each line of stdin (a JSON array) and
answers with its exit code. `... promoter NAME RUN RUN` promotes the two in turn until it is killed, and prints the number
of each audit entry that it was told of.
"""

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path


def serve() -> None:
    """Answer commands until stdin ends."""
    from evalkit.cli import cli
    from evalkit.console import run
    from evalkit.runs import promotion  # noqa: F401  (imported now, so that two start at once)

    print("ready", flush=True)
    for line in sys.stdin:
        code: object = None
        with redirect_stdout(StringIO()):
            try:
                run(cli, json.loads(line))
            except SystemExit as left:
                code = left.code
        print(code, flush=True)


def promote_for_ever(name: str, runs: list[str]) -> None:
    """Promote in turn. The runs aren't verified, so that nearly all time is spent in what a kill could tear."""
    from evalkit.runs import promotion
    from evalkit.runs.folder import RunFolder

    promotion.verify = lambda folder: []
    print("ready", flush=True)
    while True:
        for run in runs:
            print(promotion.promote(RunFolder(Path(run)), name).entry.seq, flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        promote_for_ever(sys.argv[1], sys.argv[2:])
    else:
        serve()
