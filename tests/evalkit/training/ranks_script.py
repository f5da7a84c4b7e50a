"""Run by msrun: the tutorial's network, evaluated by all ranks together."""

import json
import os
import sys
from pathlib import Path

import mindspore as ms
from mindspore import communication, nn

from evalkit.backends.checkpoint import CheckpointBackend
from evalkit.training.distributed import MissingRankError, Ranks
from tests.evalkit.training.fixtures import small_validation
from tests.evalkit.training.tutorial import TutorialLM


def main() -> None:
    """Write result-RANK.json, or error-RANK.txt."""
    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    ms.set_context(mode=ms.GRAPH_MODE)
    communication.init()
    ranks = Ranks.of_mindspore(folder / "shared", timeout_s=settings.get("timeout_s", 120.0))
    ms.set_seed(5)
    own = folder / f"own-{ranks.rank}"
    own.mkdir()
    check = small_validation(own)
    network = TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=0.1))
    backend = CheckpointBackend(network, vocab_size=check.tokenizer.vocab_size, max_length=128)
    if settings.get("kill") == ranks.rank:
        os._exit(9)
    try:
        found = ranks.measure(check, backend, 1)
    except MissingRankError as error:
        (folder / f"error-{ranks.rank}.txt").write_text(str(error))
        os._exit(4)  # communication can't be closed without the other rank
    values = [(metric.name, metric.slice, metric.value, repr(metric.interval)) for metric in found.metrics]
    sums = [(sample.sample_id, sample.nll) for sample in found.evidence.samples]
    (folder / f"result-{ranks.rank}.json").write_text(json.dumps([values, sums]))


if __name__ == "__main__":
    main()
