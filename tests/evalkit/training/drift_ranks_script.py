"""Run by msrun: a training with drift-aware and perturbed evaluations, whose processes see one half of each batch's texts.

Every process learns from the whole batch, so that all hold the weights of a single process, bit for bit; what is to be
shown are the evaluations.
"""

import json
import sys
from pathlib import Path

import mindspore as ms
from mindspore import communication, nn
from mindspore.train import Model

from evalkit.resampling.features import entity_density, from_function
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.training import AtEnd, Drift, EvalCallback, EveryNSteps, OnLossSpike, Ranks, validation
from tests.evalkit.training.driver import Nowhere
from tests.evalkit.training.fixtures import texts, token_rows, write_tokenizer
from tests.evalkit.training.tutorial import LossCell, TutorialLM, dataset

PARTS, BATCH, STEPS = 2, 4, 16
METRICS = ["perplexity/token", "logits/entropy", "robustness/typos/perplexity/token"]


def main() -> None:
    """Write records-RANK.json, and in half-RANK.json what the rank's own texts alone would have weighed."""
    folder = Path(json.loads(sys.argv[1])["folder"])
    ms.set_context(mode=ms.GRAPH_MODE)
    communication.init()
    ranks = Ranks.of_mindspore(folder / "shared", timeout_s=120.0)
    ms.set_seed(5)
    own = folder / f"own-{ranks.rank}"
    own.mkdir()
    check = validation(texts(120), write_tokenizer(own), max_length=128)
    # The shortest of many, the shortest first: unlike the validation set, and unlike at each evaluation.
    stream = sorted(texts(200, seed=9), key=lambda item: len(item.text))[: STEPS * BATCH]
    features = [from_function("words", lambda text: len(text.split())), entity_density()]
    settings = ReweightingSettings(min_effective=2, bins=4, max_distance=0.9, max_uncovered=0.9)

    def seen(arguments) -> list[str]:
        """This process's part of the batch, or all parts, one behind the other."""
        first = (int(arguments.cur_step_num) - 1) * BATCH
        batch = [item.text for item in stream[first : first + BATCH]]
        parts = range(PARTS) if ranks.size == 1 else [ranks.rank]
        return [text for part in parts for text in batch[part::PARTS]]

    network = TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=0.0))
    loss_cell = LossCell(network)
    alone = Drift(seen, features, window=60 // PARTS, settings=settings)
    alone.begin(check.items, check.tokenizer)

    class Watch(ms.train.Callback):
        def on_train_step_end(self, run_context) -> None:
            alone.see(run_context.original_args())

    callback = EvalCallback(
        network,
        check,
        [Nowhere()],
        triggers=[EveryNSteps(6), OnLossSpike(), AtEnd()],
        metrics=METRICS,
        robustness=[{"perturb": "typos", "rate": 0.1}],
        ranks=ranks,
        drift=Drift(seen, features, window=60, settings=settings),
    )
    model = Model(loss_cell, optimizer=nn.Adam(loss_cell.trainable_params(), 1e-2))
    data = dataset(token_rows(check), batch_size=BATCH)
    model.train(STEPS // 8, data, callbacks=[callback, Watch()], dataset_sink_mode=False)
    records = [{**record.to_dict(), "elapsed_ns": 0} for record in callback.records]
    (folder / f"records-{ranks.rank}.json").write_text(json.dumps(records))
    half = alone.setup().details["effective_sample_size"]
    (folder / f"half-{ranks.rank}.json").write_text(json.dumps(half))


if __name__ == "__main__":
    main()
