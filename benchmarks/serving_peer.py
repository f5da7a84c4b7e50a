"""The peer's side of `benchmarks/serving.py --part engine`: PyTorch eager with a KV cache, and Hugging Face generate.

It runs with the Python of the peers' environment (transformers, torch), so nothing of this project is imported.
"""

import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


def main() -> None:
    """Read one JSON object of settings from stdin, print one of measurements; see `benchmarks/serving.py`."""
    settings = json.load(sys.stdin)
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(settings["hf"], dtype=torch.float32).eval()
    prompts = torch.tensor(settings["prompts"])
    new = settings["new_tokens"]

    def one(count: int) -> dict:  # type: ignore[type-arg]
        begin = time.perf_counter()
        cache, ids, found, times = DynamicCache(), prompts[:1], [], []
        for _ in range(count):
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            found.append(int(ids))
            times.append(time.perf_counter())
        return {
            "seconds": times[-1] - begin,
            "ms_per_token": 1e3 * (times[-1] - times[0]) / max(count - 1, 1),
            "first_token_ms": 1e3 * (times[0] - begin),
            "ids": [found],
        }

    def batch(count: int) -> dict:  # type: ignore[type-arg]
        begin = time.perf_counter()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens_per_s": len(prompts) * count / seconds}

    with torch.inference_mode():
        one(4)
        result = {"one": [one(new) for _ in range(settings["repeats"])]}
        if settings["batch"]:
            batch(2)
            result["batch"] = [batch(new) for _ in range(settings["repeats"])]
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
