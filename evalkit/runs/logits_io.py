"""logits.parquet: one row a scored token, with the model's raw logits, written text by text."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.backends.raw_logits import logits_file, open_logits
from evalkit.bundle import Bundle
from evalkit.console import Progress
from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.setup import ModelSetup, RunSetup
from evalkit.scenario.schema import Window

if TYPE_CHECKING:
    from evalkit.scoring.raw_logits import LogitRows

# Row groups of about this size: a reader needs one of them in memory.
_GROUP_BYTES = 64 << 20


def check_logits(setup: RunSetup) -> None:
    """Refuse raw logits that no graph gives or that are too large, before anything is measured.

    Raises:
        InputError: so it is.
    """
    from evalkit.scoring.raw_logits import check_logits_size

    for model in setup.models:
        bundle, window = _graph_of(model)
        logits_file(setup.backend, bundle)
        check_logits_size(setup.texts, bundle.tokenizer, window, bundle.model.vocab_size)


def keep_raw_logits(
    setup: RunSetup, model: ModelSetup, folder: RunFolder, evidence: Evidence, progress: Progress
) -> None:
    """Write logits.parquet in a pass of its own, over the texts that were scored; an interrupted one begins anew.

    Raises:
        InputError: the graph can't be loaded.
    """
    from evalkit.scoring.raw_logits import text_logits

    scored = {sample.sample_id for sample in evidence.samples if sample.kind == "text" and sample.scored}
    items = sorted(
        (item for item in setup.texts if item.sample_id in scored), key=lambda item: item.sample_id
    )
    bundle, window = _graph_of(model)
    run = open_logits(logits_file(setup.backend, bundle))
    task = progress.start(f"{model.side}: raw logits", len(items))

    def shown() -> "Iterator[LogitRows]":
        for rows in text_logits(items, bundle.tokenizer, run, window):
            yield rows
            progress.advance(task)

    write_logits(folder.logits(model.side), shown(), bundle.model.vocab_size)


def _graph_of(model: ModelSetup) -> tuple[Bundle, Window]:
    if not isinstance(model.model, Bundle) or model.window is None:
        raise InputError(
            f"--logits: the {model.side} is no bundle, so there is no graph that gives raw logits; leave the option out"
        )
    return model.model, model.window


def write_logits(path: Path, texts: "Iterable[LogitRows]", vocab_size: int) -> None:
    """Write raw logits; the file appears whole, and memory holds one text and one row group.

    Args:
        path: of the file.
        texts: in the order to write.
        vocab_size: numbers a token.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("sample_id", pa.string()),
            ("index", pa.int32()),
            ("token_id", pa.int32()),
            ("logits", pa.list_(pa.float32(), vocab_size)),
        ]
    )
    staging = path.with_name(f".{path.name}.partial")
    try:
        with pq.ParquetWriter(staging, schema, compression="zstd") as writer:
            for rows in texts:
                columns = {
                    "sample_id": pa.array([rows.sample_id] * len(rows.index), pa.string()),
                    "index": pa.array(rows.index, pa.int32()),
                    "token_id": pa.array(rows.token_id, pa.int32()),
                    "logits": pa.FixedSizeListArray.from_arrays(pa.array(rows.logits.ravel()), vocab_size),
                }
                table = pa.table(columns, schema=schema)
                writer.write_table(table, row_group_size=max(1, _GROUP_BYTES // (4 * vocab_size)))
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
