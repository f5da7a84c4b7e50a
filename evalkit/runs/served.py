"""The part of a run that is about served models: whether they answer, and texts that are sent to them whole."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from evalkit.backends.models import ServedModel
from evalkit.errors import IncompleteError, InputError
from evalkit.runs.perturbed import OnRecords, ScoreItems
from evalkit.runs.records import SampleRecord
from evalkit.runs.setup import ModelSetup, RunSetup

if TYPE_CHECKING:
    from evalkit.scoring.text_records import TokenRows
    from evalkit.scoring.texts import TextItem


def check_endpoints(setup: RunSetup) -> None:
    """Ask every served model of a run for a short prompt, before anything is measured or written.

    Raises:
        InputError: one doesn't answer, or not with what scoring needs.
    """
    if not (setup.texts or setup.decisions):
        return
    for model in setup.models:
        if isinstance(model.model, ServedModel):
            try:
                model.model.open() if model.model.tokenizer is not None else model.model.open_texts()
            except IncompleteError as error:
                raise InputError(f"{error}; start the server, or correct the model's endpoint") from None


def score_whole_texts(
    setup: RunSetup,
    model: ModelSetup,
    done: Mapping[str, Collection[str]],
    on_records: Callable[[Sequence[SampleRecord]], None],
    *,
    on_tokens: "Callable[[TokenRows], None] | None",
    progress: Callable[[int], None],
    on_texts: Callable[[ScoreItems], None],
) -> None:
    """Score a run's texts and decisions with a served model whose tokenizer isn't known.

    Args:
        setup, model: of the run.
        done: ids of what is done, by kind.
        on_records, on_tokens, progress: as in `evalkit.scoring.scorer.score_texts`.
        on_texts: called when the texts are done, with what scores further ones.

    Raises:
        IncompleteError: the endpoint doesn't answer any more.
    """
    from evalkit.scoring.served_texts import score_served_decisions, score_served_texts

    assert isinstance(model.model, ServedModel)
    endpoint = model.model.open_texts()
    if setup.texts:
        score_served_texts(
            setup.texts,
            endpoint,
            model.classifier,
            on_records=on_records,
            on_tokens=on_tokens,
            progress=progress,
            done=done["text"],
        )

    def score_more(items: "Sequence[TextItem]", finished: Collection[str], take: OnRecords) -> None:
        score_served_texts(items, endpoint, model.classifier, on_records=take, done=finished)

    on_texts(score_more)
    risk = setup.loaded.scenario.risk
    if risk is not None:
        score_served_decisions(
            setup.decisions,
            endpoint,
            risk,
            seed=setup.loaded.scenario.seed,
            on_records=on_records,
            progress=progress,
            done=done["risk"],
        )
