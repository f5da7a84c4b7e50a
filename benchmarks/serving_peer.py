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

    os.sched_setaffinity(0, settings["cores"])
    torch.set_num_threads(len(settings["cores"]))
    model = AutoModelForCausalLM.from_pretrained(settings["hf"], dtype=torch.float32).eval()
    prompts = torch.tensor(settings["prompts"])
    new = settings["new_tokens"]

    def one(count: int) -> dict:  # type: ignore[type-arg]
        begin = time.perf_counter()
        cache, ids, found, times, cpu = DynamicCache(), prompts[:1], [], [], []
        for _ in range(count):
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            found.append(int(ids))
            times.append(time.perf_counter())
            cpu.append(time.process_time())
        return {
            "seconds": times[-1] - begin,
            "ms_per_token": 1e3 * (times[-1] - times[0]) / max(count - 1, 1),
            "cpu_ms_per_token": 1e3 * (cpu[-1] - cpu[0]) / max(count - 1, 1),
            "first_token_ms": 1e3 * (times[0] - begin),
            "ids": [found],
        }

    def batch(count: int) -> dict:  # type: ignore[type-arg]
        begin, cpu_begin = time.perf_counter(), time.process_time()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        tokens = len(prompts) * count
        return {
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "tokens_per_cpu_s": tokens / cpu_s,
        }

    with torch.inference_mode():
        one(4)
        result = {"one": [one(new) for _ in range(settings["repeats"])]}
        if settings["batch"]:
            batch(2)
            result["batch"] = [batch(new) for _ in range(settings["repeats"])]
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
