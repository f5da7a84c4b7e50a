"""The peer's side of benchmarks.training: PyTorch and transformers. Runs in their environment, imports nothing of ours."""

import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM


def visible(positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """What to add to attention scores: 0 within a text up to the token itself, [B, 1, S, S]."""
    earlier = positions[:, :, None] >= positions[:, None, :]
    same = segments[:, :, None] == segments[:, None, :]
    return torch.where(earlier & same, 0.0, -1e9)[:, None]


def groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay, norms and biases don't."""
    named = list(model.named_parameters())
    plain = [parameter for name, parameter in named if "norm" in name or name.endswith("bias")]
    rest = [parameter for name, parameter in named if not ("norm" in name or name.endswith("bias"))]
    return [{"params": rest, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def main() -> None:
    """Settings on stdin, seconds and loss of each step on stdout."""
    settings = json.load(sys.stdin)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings["threads"]])
    torch.set_num_threads(settings["threads"])
    model = LlamaForCausalLM.from_pretrained(
        settings["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train()
    optimizer = torch.optim.AdamW(
        groups(model, settings["weight_decay"]), lr=1.0, betas=(0.9, 0.95), eps=1e-8, fused=True
    )
    batches = {name: torch.from_numpy(value) for name, value in np.load(settings["batches"]).items()}
    seconds, losses = [], []
    for step in range(settings["steps"]):
        began = time.perf_counter()
        ids, targets, positions, segments, weights = (
            batches[name][step] for name in ("token_ids", "targets", "positions", "segments", "weights")
        )
        for group in optimizer.param_groups:
            group["lr"] = settings["rates"][step]
        optimizer.zero_grad(set_to_none=True)
        logits = model(
            input_ids=ids.long(),
            position_ids=positions.long(),
            attention_mask=visible(positions, segments),
            use_cache=False,
        ).logits
        nll = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten().long(), reduction="none"
        )
        asked = weights.flatten().float()
        loss = (nll * asked).sum() / asked.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main()
