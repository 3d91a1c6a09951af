"""Where requests go, by what the board knows of caches and of work on its way."""

import numpy as np
import pytest

from runtime.replicas.board import Board, RoutedRequest
from runtime.replicas.prompt_keys import PromptKeys
from runtime.scheduler.kv_event_wire import AllBlocksCleared, Batch, BlockStored

PAGE = 256
NAMES = ("a", "b")


def routed(pages: int, seed: int = 0, *, extra: int = 0, namespace: str = "") -> RoutedRequest:
    """Return a request whose prompt begins as every other one of this seed."""
    tokens = np.random.default_rng(seed).integers(0, 250, 100 * PAGE, np.int32)
    cut = tokens[: pages * PAGE + extra]
    return RoutedRequest(PromptKeys.of(cut, block_size=PAGE, namespace=namespace, key=b"k"))


def board() -> Board:
    made = Board()
    made.keep(NAMES)
    return made


def store(board: Board, name: str, one: RoutedRequest) -> None:
    """Have a replica announce the blocks of a request's prompt."""
    assert one.keys is not None
    with board.index(name) as index:
        index.apply(
            Batch(0.0, [BlockStored(one.keys.blocks, None, [], PAGE, None, "GPU", None)], 0)
        )
        index.current = True


def test_a_request_goes_where_its_blocks_are() -> None:
    known = board()
    store(known, "b", routed(4))

    assert known.place(routed(5), NAMES) == "b"
    assert known.place(routed(5, seed=1), NAMES) == "a"


def test_an_index_that_is_not_current_draws_nothing() -> None:
    known = board()
    store(known, "b", routed(4))
    with known.index("b") as index:
        index.current = False

    assert known.place(routed(5), NAMES) == "a"


def test_a_prompt_on_its_way_counts_as_cached_until_it_has_ended() -> None:
    known = board()
    first = routed(2)
    assert known.place(first, NAMES) == "a"
    known.answered(first)

    second = routed(2, extra=9)
    assert known.place(second, NAMES) == "a"
    assert second.uncached <= 9
    known.done(second)
    known.done(first)
    assert known.describe()["a"] == {
        "requests": 0,
        "waiting_tokens": 0,
        "served": 2,
        "blocks": 0,
        "current": False,
    }


def test_beginnings_of_blocks_are_remembered_until_the_cache_is_cleared() -> None:
    known = board()
    first = routed(0, extra=100)
    assert known.place(first, NAMES) == "a"
    known.done(first)
    busy = [routed(0, seed=k, extra=60) for k in (7, 8)]
    for one in busy:
        known.place(one, ["a"])

    again = routed(0, extra=150)
    assert known.place(again, NAMES) == "a"
    assert again.uncached == 50
    known.done(again)
    known.cleared("a")
    assert known.place(routed(0, extra=150), NAMES) == "b"


def test_a_queue_that_costs_more_than_the_match_saves_is_left() -> None:
    known = board()
    store(known, "b", routed(4))
    known.place(routed(80, seed=5), ["b"])

    left = routed(4, extra=10)
    assert known.place(left, NAMES) == "a"
    assert left.uncached == 4 * PAGE + 10


def test_work_ends_with_the_last_block_of_a_prompt_or_the_first_piece_of_an_answer() -> None:
    known = board()
    one, other = routed(3, seed=1, extra=20), routed(2, seed=2)
    known.place(one, ["a"])
    known.place(other, ["a"])
    assert known.describe()["a"]["waiting_tokens"] == 5 * PAGE + 20

    store(known, "a", one)
    assert known.describe()["a"]["waiting_tokens"] == 2 * PAGE
    known.answered(other)
    assert known.describe()["a"]["waiting_tokens"] == 0
    assert known.describe()["a"]["requests"] == 2


def test_a_request_that_is_placed_again_leaves_the_first_replica() -> None:
    known = board()
    one = routed(3)
    assert known.place(one, NAMES) == "a"

    assert known.place(one, NAMES, avoid=["a"]) == "b"

    assert [view["requests"] for view in known.describe().values()] == [0, 1]
    assert known.place(one, ["a"], avoid=["a"]) == "a"


def test_a_replica_that_comes_back_begins_with_nothing() -> None:
    known = board()
    one = routed(3)
    store(known, "a", one)
    known.place(one, ["a"])

    known.keep(["b"])
    assert known.names() == ["b"]
    known.done(one)  # its replica is gone
    known.keep(NAMES)
    assert known.describe()["a"]["blocks"] == 0
    known.cleared("nobody")
    with known.index("nobody") as index:
        index.apply(Batch(0.0, [AllBlocksCleared()], 0))
    assert set(known.names()) == set(NAMES)


def test_without_keys_the_load_decides_and_without_names_nothing() -> None:
    known = board()
    known.place(routed(1), ["a"])

    assert known.place(RoutedRequest(None), NAMES) == "b"
    with pytest.raises(ValueError, match="no replica"):
        known.place(RoutedRequest(None), [])


def test_another_salt_does_not_see_what_is_cached() -> None:
    known = board()
    salted = routed(4, namespace="one")
    store(known, "b", salted)

    assert known.place(routed(4, namespace="two"), NAMES) == "a"
    assert known.place(routed(4), ["b"]) == "b"
    assert known.place(routed(4, namespace="one"), NAMES) == "b"
