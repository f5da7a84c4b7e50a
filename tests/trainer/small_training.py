"""A training step over a tiny model."""

import json

import mindspore as ms

from trainer.config import load_config
from trainer.data.pipeline import prepare
from trainer.model.weights import initialise
from trainer.setup import build_step


class SmallTraining:
    """A step over a tiny model and its first batches."""

    def __init__(self, folder, **changes):
        self.config = load_config(folder / "config.yaml").model_copy(update=changes)
        data = prepare(self.config, folder)
        spec = self.config.model.spec(data.tokenizer.vocab_size)
        ms.set_context(mode=ms.GRAPH_MODE)
        self.step = build_step(self.config, spec, 0)
        self.model = self.step.network
        initialise(self.model, spec, 1)
        self.batches = list(data.epoch(self.config, 0))
        self.data = data


def read_lines(path):
    """The records of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
