"""A bank of few words: a business that a small model learns to the letter in some ten seconds.

What a fault of the server spoils is what the model goes by:

- the user's name is told in the first turn and asked for in the last: a cut window loses it, another session's keys tell
  another customer's;
- after a message of its own the agent asks how it can help: a user taken for the agent gets that for an answer;
- the agent's name is drawn anew in each training conversation: sampling draws it, greedy decoding says one.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

NAMES = (
    *("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jon", "Kim", "Lars"),
    *("Mia", "Nils", "Olga", "Pia", "Rosa", "Sven", "Tom", "Ugo", "Vera", "Wang", "Yan", "Zoe"),
)
AGENTS = ("Bo", "Gil", "Kai", "Lou", "Max", "Sam")
OPENING, WHO_AM_I, WHO_ARE_YOU = "I am {name}", "who am I", "who are you"
GREETING, FOLLOW_UP = "hello, ", "how can I help"
QUESTIONS = {
    "my card is lost": "I block your card",
    "the card is gone": "I block your card",
    "what is my balance": "you have fifty euro",
    "show the balance": "you have fifty euro",
    "balance please": "you have fifty euro",
}
STEPS = 300
CONFIG = f"""\
version: 1
name: few_words
seed: 7
model: {{family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 4, max_length: 128, tied_head: true}}
tokenizer: {{train: {{vocab_size: 384}}}}
data:
  train: [train.jsonl]
  validation: [validation.jsonl]
  loss_on: assistant
  sequence_length: 128
  clean: {{exact_duplicates: count}}
optimizer: {{learning_rate: 5.0e-3, schedule: cosine, warmup_steps: 30, weight_decay: 0.01, clip_norm: 1.0}}
precision: {{level: O0, loss_scale: {{initial: 65536, factor: 2, window: 1000}}}}
steps: {STEPS}
batch_size: 8
checkpoints: {{every: {STEPS // 2}, keep_last: 2}}
"""


def write_training(folder: Path) -> Path:
    """Corpus and configuration; returns the configuration."""
    random = Random(11)
    for name, count in (("train", 4000), ("validation", 60)):
        write_lines(folder / f"{name}.jsonl", [_record(random, f"{name}-{row}") for row in range(count)])
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return folder / "config.yaml"


def _record(random: Random, key: str) -> dict[str, Any]:
    if random.random() < 0.2:
        return {"id": key, "text": note(random)}
    name, agent = random.choice(NAMES), random.choice(AGENTS)
    asked = random.sample([*QUESTIONS.items(), (WHO_ARE_YOU, f"I am {agent}")], random.randint(0, 4))
    exchanges = asked
    if random.random() < 0.6 or not asked:
        later = [(WHO_AM_I, f"you are {name}"), *asked]
        random.shuffle(later)
        exchanges = [(OPENING.format(name=name), f"I am {agent}"), *later]
    messages = []
    for index, (user, reply) in enumerate(exchanges):
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": (GREETING if index == 0 else "") + reply})
        if random.random() < 0.2:
            messages.append({"role": "assistant", "content": FOLLOW_UP})
    return {"id": key, "messages": messages}


def note(random: Random) -> str:
    """A line of the bank's diary: the texts that are scored."""
    return (
        f"{random.choice(NAMES)} has {random.choice(('a card', 'fifty euro', 'no card', 'a balance'))} today"
    )


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
