"""A training step over a tiny model."""

import json

import mindspore as ms

from trainer.config import load_config
from trainer.data.pipeline import prepare
from trainer.model.decoder import CausalLM
from trainer.model.weights import initialise
from trainer.step import TrainStep


class SmallTraining:
    """A step over a tiny model and its first batches."""

    def __init__(self, folder, **changes):
        self.config = load_config(folder / "config.yaml").model_copy(update=changes)
        data = prepare(self.config, folder)
        spec = self.config.model.spec(data.tokenizer.vocab_size)
        ms.set_context(mode=ms.GRAPH_MODE)
        self.model = CausalLM(spec)
        initialise(self.model, spec, 1)
        self.model.set_train(True)
        self.step = TrainStep(self.model, self.config)
        self.batches = list(data.epoch(self.config, 0))
        self.data = data


def read_lines(path):
    """The records of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
