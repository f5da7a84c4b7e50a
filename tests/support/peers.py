"""Hugging Face transformers in an environment of its own: PyTorch doesn't live beside this project."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "EVALKIT_PEERS_PYTHON"

# Reads a request on stdin: folder, token ids or texts; prints one JSON object.
_SCRIPT = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
request = json.load(sys.stdin)
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(request["folder"], local_files_only=True)
model, loading = AutoModelForCausalLM.from_pretrained(
    request["folder"], dtype=torch.float32, local_files_only=True, output_loading_info=True
)
model.eval()
answer = {"loading": {key: sorted(map(str, loading[key])) for key in ("missing_keys", "unexpected_keys")}, "items": []}
for item in request["items"]:
    ids = item.get("ids")
    if ids is None:
        ids = tokenizer(item["text"]).input_ids
    row = torch.tensor([ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(row).logits[0].double(), -1)
        produced = []
        if item.get("new"):
            found = model.generate(
                row, attention_mask=torch.ones_like(row), max_new_tokens=item["new"], do_sample=False,
                pad_token_id=0, eos_token_id=request["end"],
            )
            produced = found[0, len(ids):].tolist()
    if produced and produced[-1] == request["end"]:
        produced.pop()
    targets = torch.tensor(ids[1:])
    answer["items"].append({
        "ids": ids,
        "logprobs": logprobs[:-1].gather(1, targets[:, None])[:, 0].tolist(),
        "produced": produced,
        "text": tokenizer.decode(produced, skip_special_tokens=True),
    })
if "chat" in request:
    answer["chat"] = tokenizer.apply_chat_template(request["chat"], tokenize=False, add_generation_prompt=True)
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="session")
def peers_python() -> str:
    """The interpreter that has PyTorch and transformers."""
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"set {VARIABLE} to a Python with torch and transformers")
    return found


def ask_transformers(
    python: str, folder: Path, items: list[dict[str, Any]], *, end: int | None, **more: Any
) -> dict[str, Any]:
    """Run transformers on a model folder.

    Args:
        python: an interpreter with transformers.
        folder: a Hugging Face model.
        items: each `ids` or `text`, and `new`, how many tokens to produce greedily.
        end: the token that ends a text.
        more: `chat`, messages for the chat template.

    Returns:
        `items`: for each its ids, log-probabilities (float64 softmax of float32 logits), produced ids without the end
        token, and their text; `loading`: names that were missing or not expected; `chat`: the prompt.
    """
    request = {"folder": str(folder), "items": items, "end": end, **more}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", _SCRIPT],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=environment | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
