"""What `--dp-size auto` becomes: a table of decisions, and what is known of a world before it."""

import logging
from dataclasses import replace

import pytest
import torch

import runtime.executor.attention_choice as attention_choice
from layers.models.contract import Settings
from layers.models.deepseek_v4.model import V4Model
from layers.parallel.ranks import HostRanks
from layers.parallel.shares import Shares
from runtime.config import ServerConfig
from runtime.executor.attention_choice import World, choose_attention, decide
from runtime.executor.host_memory import weight_bytes
from tests.testing.tiny_model import CONFIG
from tests.testing.toy_family import Toy

TINY = V4Model(CONFIG)
AUTO = ServerConfig(device="cpu", tp_size=2, dp_size="auto")
# V4-Flash in fp4 on two H200s, as large as it is there.
FLASH = World(2, rows=8, weight_bytes=91_000_000_000, memory_bytes=126_000_000_000)


@pytest.mark.parametrize(
    ("world", "own", "reason"),
    [
        (FLASH, True, "8 rows for each rank, weights of 91.00 GB in 126.00 GB"),
        (replace(FLASH, rows=128), True, "128 rows for each rank"),
        (replace(FLASH, rows=7), False, "7 rows for each rank; fewer than 8 are faster shared"),
        (replace(FLASH, ranks=1), False, "there is one rank"),
        (replace(FLASH, refusal="heads are odd"), False, "heads are odd"),
        (replace(FLASH, memory_bytes=113_750_000_000), True, "in 113.75 GB"),
        (replace(FLASH, memory_bytes=113_000_000_000), False, "too little for the cache"),
    ],
)
def test_rows_of_their_own_are_for_many_requests_where_weights_fit(
    world: World, own: bool, reason: str
) -> None:
    chosen, told = decide(world)

    assert chosen is own
    assert reason in told


@pytest.mark.parametrize(
    ("rows", "dp", "rows_each"), [(15, 1, 15), (16, 2, 8), (33, 2, 16), (None, 2, None)]
)
def test_rows_that_were_given_are_those_of_all_ranks(
    rows: int | None, dp: int, rows_each: int | None
) -> None:
    choice = choose_attention(replace(AUTO, max_running_requests=rows), TINY)

    config = choice.config
    assert (config.dp_size, config.enable_dp_attention) == (dp, dp > 1)
    assert config.max_running_requests == rows_each
    assert choice.facts == {"dp_size_reason": choice.reason}


def test_memory_that_the_weights_would_fill_is_shared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needed = TINY.own_rows_bytes("cpu", Settings(), 2)
    for host_bytes, dp in ((2 * needed, 1), (3 * needed, 2)):
        monkeypatch.setattr(attention_choice, "total_host_bytes", lambda size=host_bytes: size)
        with caplog.at_level(logging.INFO, logger="umbra.scheduler"):
            assert choose_attention(AUTO, TINY).config.dp_size == dp

    shared, own = [record.getMessage() for record in caplog.records]
    assert shared.startswith("--dp-size auto: ranks share all rows (weights of")
    assert own.startswith("--dp-size auto: each rank has rows of its own (64 rows for each rank")


def test_a_network_without_ranks_of_such_kind_is_shared() -> None:
    choice = choose_attention(AUTO, Toy(8, 8, (1,)))

    assert (choice.config.dp_size, choice.reason) == (1, "this family is not shared")


def test_one_rank_has_all_rows_and_a_number_is_left_as_it_is() -> None:
    alone = choose_attention(replace(AUTO, tp_size=1, max_running_requests=64), TINY)
    given = replace(AUTO, dp_size=2, enable_dp_attention=True, max_running_requests=4)

    assert alone.config == replace(AUTO, tp_size=1, dp_size=1, max_running_requests=64)
    assert choose_attention(given, TINY).config is given
    assert choose_attention(given, TINY).facts == {}


@pytest.mark.parametrize("world", [2, 4])
def test_the_bytes_of_weights_are_those_of_a_rank_that_is_built(world: int) -> None:
    ranks = HostRanks(Shares(0, world, "data"))
    built = TINY.build(torch.device("cpu"), Settings(), ranks)

    held = weight_bytes(built)
    assert 0.95 * held <= TINY.own_rows_bytes("cpu", Settings(), world) <= held, "padding aside"


def test_experts_count_as_a_gpu_keeps_them() -> None:
    packed = V4Model(replace(CONFIG, expert_dtype="fp4"))
    sizes = [packed.own_rows_bytes("cuda", Settings(experts=form), 2) for form in ("auto", "fp4")]
    wider = packed.own_rows_bytes("cuda", Settings(experts="both"), 2)

    assert sizes[0] == sizes[1] < wider
