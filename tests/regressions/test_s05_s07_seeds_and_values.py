"""S5-S7: seeds that differ a process, generators that disturb each other, values spelled two ways."""

import subprocess
import sys
import threading
from random import Random

import pytest

from evalkit.scenario.expectations import Reply, check_dialogue, states
from evalkit.scenario.variation import trial_seed, user_texts
from tests.support.dialogues import RECALL, dialogue


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_s5_seeds_come_from_sha256_not_from_the_salted_hash(hash_seed: str) -> None:
    code = "from evalkit.scenario.variation import trial_seed; print(trial_seed(1, 'd', 2))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed},
    )
    assert int(other.stdout) == trial_seed(1, "d", 2)
    assert len({trial_seed(run, name, trial) for run in (1, 2) for name in "ab" for trial in range(3)}) == 12


def test_s6_each_trial_has_its_own_generator() -> None:
    talk = dialogue(RECALL, turns=[{"user": "a long text with many letters in it " * 5, "gold": "x"}] * 4)
    alone = [user_texts(talk, 1, trial, ("typos",)) for trial in range(8)]
    side_by_side: dict[int, list[str]] = {}

    def work(trial: int) -> None:
        Random(trial).random()
        side_by_side[trial] = user_texts(talk, 1, trial, ("typos",))

    threads = [threading.Thread(target=work, args=(trial,)) for trial in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [side_by_side[trial] for trial in range(8)] == alone


@pytest.mark.parametrize("said", ["25", "25.0", "25.00"])
@pytest.mark.parametrize("wanted", [25, 25.0, "25", "25.0"])
def test_s7_25_and_25_0_are_one_value(said: str, wanted: object) -> None:
    talk = dialogue(RECALL, facts={**RECALL["facts"], "amount": wanted})
    assert states(f"It costs {said} euros.", talk.fact("amount"), whole_words=True)


def test_s7_only_the_declared_state_is_compared() -> None:
    talk = dialogue(RECALL, end_state={"handed_over": False})
    results = check_dialogue(talk, [Reply("anything", intent="unexpected", handover=False)])
    assert [result.kind for result in results] == ["end_state"] and results[0].passed
