"""A server whose two ranks have rows of their own, as processes on the CPU."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.pools import assert_all_free, wait_idle
from tests.end_to_end.test_ranks import NEW, POOLS, prompt, same_until_close
from tests.testing.server_process import ServerProcess, running_server

# As many rows as make the server choose such ranks.
OWN_ROWS = (
    *("--device", "cpu", "--tp-size", "2", "--dp-size", "auto"),
    *("--max-running-requests", "16"),
)


@pytest.fixture(scope="module")
def joint(tiny_model: tuple[str, ...]) -> Iterator[ServerProcess]:
    """A server of two ranks with tiny pools that checks every step."""
    with running_server(*tiny_model, *POOLS, *OWN_ROWS) as server:
        yield server


@pytest.fixture(scope="module")
def alone(cold_server: ServerProcess) -> ServerProcess:
    """A server of one rank."""
    return cold_server


def test_ranks_with_rows_of_their_own_choose_the_tokens_of_one(
    joint: ServerProcess, alone: ServerProcess
) -> None:
    lengths = (1, 64, 127, 128, 256, 257, 300, 500)
    prompts = [prompt(n, length) for n, length in enumerate(lengths)]

    with ThreadPoolExecutor(6) as pool:
        same = list(pool.map(lambda ids: same_until_close(joint, alone, ids), prompts))

    assert sum(same) > 0.8 * NEW * len(lengths)
    info = joint.get("/server_info")
    assert (info["dp_size"], info["enable_dp_attention"]) == (2, True)
    assert info["dp_size_reason"].startswith("8 rows for each rank, weights of 0.00 GB")
    assert info["max_running_requests"] == 16
    states = info["internal_states"]
    assert all(state["computed_prompt_tokens"] > 0 for state in states)


def test_a_second_turn_goes_where_the_first_was_computed(
    joint: ServerProcess, alone: ServerProcess
) -> None:
    first = prompt(100, 300)
    reply = joint.generate(first, max_new_tokens=NEW, ignore_eos=True)["output_ids"]
    second = [*first, *reply, *prompt(101, 20)]

    told = joint.generate(second, max_new_tokens=NEW, ignore_eos=True)

    assert told["meta_info"]["cached_tokens"] >= 256
    assert same_until_close(joint, alone, second) > 0


def copied(server: ServerProcess) -> float:
    """Return the tokens that ranks have copied from each other."""
    return sum(state["copied_tokens"] for state in server.get("/server_info")["internal_states"])


def test_a_prefix_is_copied_to_the_other_rank_when_one_is_busy(
    joint: ServerProcess, alone: ServerProcess
) -> None:
    shared = prompt(300, 300)
    joint.generate(shared, max_new_tokens=1)
    before = copied(joint)
    prompts = [[*shared, *prompt(301 + n, 5)] for n in range(6)]

    with ThreadPoolExecutor(6) as pool:
        replies = list(
            pool.map(lambda ids: joint.generate(ids, max_new_tokens=24, ignore_eos=True), prompts)
        )

    assert all(reply["meta_info"]["cached_tokens"] >= 256 for reply in replies)
    assert copied(joint) - before >= 256
    wait_idle(joint)
    assert same_until_close(joint, alone, prompts[-1]) > 0


def test_pools_of_all_ranks_are_emptied_and_nothing_leaks(joint: ServerProcess) -> None:
    prompts = [prompt(200 + n, 400 + 40 * n) for n in range(24)]

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda ids: joint.generate(ids, max_new_tokens=3), prompts))

    assert len(replies) == len(prompts)
    wait_idle(joint)
    states = joint.get("/server_info")["internal_states"]
    assert all(state["evicted_pages"] > 0 for state in states)
    assert_all_free(joint)
