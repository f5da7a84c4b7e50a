"""Several ranks: what fails on one is told on all, and no rank waits for one that has given up."""

import threading

import pytest

from evalkit.errors import InputError
from evalkit.training.callback import EvalCallback
from evalkit.training.distributed import FailedRankError, MissingRankError, Ranks
from evalkit.training.triggers import EveryNSteps, OnLossSpike
from tests.evalkit.training.driver import Nowhere, network
from tests.evalkit.training.fixtures import small_validation
from tests.evalkit.training.table import TableBackend


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


def in_ranks(work, size, folder, timeout_s=20.0):
    """What `work(ranks)` gave in each rank, or raised."""
    found = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(Ranks(rank, size, folder, "run", timeout_s))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def test_what_the_ranks_exchange_arrives_to_the_last_digit(tmp_path):
    def work(ranks):
        values = [ranks.exchange("1.5", name, [ranks.rank, 2**60 + ranks.rank]) for name in ("a", "b")]
        return values[1], ranks.exchange("2.5", "a", ranks.rank)

    each = [[rank, 2**60 + rank] for rank in range(3)]
    assert in_ranks(work, 3, tmp_path) == [(each, [0, 1, 2])] * 3
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["step-2.5-a"] * 3


def test_who_waits_for_a_rank_that_failed_gives_up_at_once(check, tmp_path):
    """Rank 1 fails before its part; the others don't wait for the time limit, and all tell the same."""

    def work(ranks):
        backend, error = TableBackend(check.tokenizer.vocab_size, 128), None
        if ranks.rank == 1:
            error = "rank 1: RuntimeError: out of memory"
        else:
            with pytest.raises(FailedRankError):
                ranks.measure(check, backend, "1.8")
            error = "rank 1: RuntimeError: out of memory"
        return ranks.agree("1.8", error), ranks.measure(check, backend, "1.9").find("perplexity/token").value

    found = in_ranks(work, 3, tmp_path)
    assert [one[0] for one in found] == ["rank 1: RuntimeError: out of memory"] * 3
    assert len({one[1] for one in found}) == 1


def test_a_rank_that_only_hears_of_the_failure_agrees(tmp_path):
    told = in_ranks(lambda ranks: ranks.agree(3, "rank 1: E: x" if ranks.rank == 1 else None), 2, tmp_path)
    assert told == ["rank 1: E: x"] * 2
    assert in_ranks(lambda ranks: ranks.agree(4, None), 2, tmp_path) == [None, None]


def test_a_rank_whose_trigger_didnt_ask_is_missed_in_time(tmp_path):
    (error, _) = in_ranks(
        lambda ranks: ranks.agree(3, None) if ranks.rank == 0 else None, 2, tmp_path, timeout_s=0.3
    )
    assert isinstance(error, MissingRankError) and "its triggers asked for no evaluation here" in str(error)


def test_a_rule_on_the_loss_needs_ranks_that_can_share_it(check, tmp_path):
    """Each rank has the loss of its own batches: one alone would evaluate, and wait for the others in vain."""
    apart = Ranks(0, 2, tmp_path, "run")
    with pytest.raises(InputError, match=r"looks at the loss.*Ranks\.of_mindspore"):
        EvalCallback(network(check), check, [Nowhere()], triggers=[OnLossSpike()], ranks=apart)
    EvalCallback(network(check), check, [Nowhere()], triggers=[EveryNSteps()], ranks=apart)
    EvalCallback(
        network(check), check, [Nowhere()], triggers=[OnLossSpike()], ranks=Ranks(0, 1, tmp_path, "run")
    )
