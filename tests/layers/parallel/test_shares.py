"""What each rank of a world holds: all of it together, and nothing twice."""

from collections.abc import Callable

import pytest

from layers.parallel.shares import Share, Shares, UnevenShares, whole

WORLDS = (1, 2, 4, 8)
Deal = Callable[[Shares, int], Share]

EVEN: dict[str, tuple[Deal, str]] = {
    "heads": (Shares.heads, "heads"),
    "groups": (Shares.groups, "groups of heads"),
    "key_heads": (Shares.key_heads, "heads of keys"),
    "vocabulary": (Shares.vocabulary, "tokens of the vocabulary"),
}


def dealt(deal: Deal, world: int, total: int) -> list[Share]:
    """Return the shares of all ranks, in their order."""
    return [deal(Shares(rank, world), total) for rank in range(world)]


def numbers(shares: list[Share]) -> list[int]:
    """Return what the ranks hold, in their order."""
    return [number for share in shares for number in range(share.total)[share.part]]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", EVEN)
def test_ranks_hold_all_once_and_alike_many(name: str, world: int) -> None:
    shares = dealt(EVEN[name][0], world, 24)

    assert numbers(shares) == list(range(24))
    assert {share.count for share in shares} == {24 // world}
    assert all(share.is_whole == (world == 1) for share in shares)


def test_ranks_that_are_more_than_heads_of_keys_hold_one_each() -> None:
    assert [numbers(dealt(Shares.key_heads, world, 2)) for world in WORLDS] == [
        [0, 1],
        [0, 1],
        [0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]
    assert dealt(Shares.key_heads, 2, 1) == [Share(0, 1, 1)] * 2
    assert Shares(1, 2, "data").key_heads(1) == Share(0, 1, 1)
    with pytest.raises(UnevenShares, match="3 heads of keys cannot be shared by 8 ranks"):
        Shares(0, 8).key_heads(3)


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize("name", EVEN)
def test_what_is_not_divided_is_refused_by_name_and_size(name: str, world: int) -> None:
    deal, called = EVEN[name]

    for total in (world + 1, 97):
        with pytest.raises(UnevenShares, match=f"^{total} {called} cannot .* {world} ranks$"):
            deal(Shares(0, world), total)


@pytest.mark.parametrize("name", EVEN)
def test_one_rank_holds_any_number(name: str) -> None:
    assert EVEN[name][0](Shares(), 97) == Share(0, 97, 97)


@pytest.mark.parametrize("name", EVEN)
def test_ranks_with_rows_of_their_own_hold_all_but_experts(name: str) -> None:
    shares = Shares(1, 2, "data")

    assert EVEN[name][0](shares, 97) == Share(0, 97, 97)
    assert shares.inner(256, blocks=True) == Shares(1, 2).inner(256, blocks=True)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("total", "blocks"), [(2048, True), (1408, True), (27, False), (8, False)])
def test_channels_of_an_expert_are_shared_in_whole_blocks(
    world: int, total: int, blocks: bool
) -> None:
    """1408 are eleven blocks, which no world divides: ranks differ by one block."""
    unit = 128 if blocks else 1

    shares = dealt(lambda one, size: one.inner(size, blocks=blocks), world, total)

    assert numbers(shares) == list(range(total))
    counts = [share.count // unit for share in shares]
    assert all(share.first % unit == share.count % unit == 0 for share in shares)
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("world", "total", "blocks"), [(2, 128, True), (8, 896, True), (2, 200, True), (8, 7, False)]
)
def test_channels_that_leave_a_rank_none_or_cut_a_block_are_refused(
    world: int, total: int, blocks: bool
) -> None:
    with pytest.raises(UnevenShares, match=f"^{total} channels .* {world} ranks$"):
        Shares(0, world).inner(total, blocks=blocks)


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_has_a_part_of_every_expert(world: int) -> None:
    assert dealt(Shares.experts, world, 5) == [whole(5)] * world


def test_heads_of_a_rank_are_those_of_its_groups() -> None:
    """What one product makes, the next one takes."""
    for world in WORLDS:
        for rank in range(world):
            shares = Shares(rank, world)
            assert shares.heads(64) == shares.groups(8).times(8)


def test_a_share_of_things_is_one_of_their_parts() -> None:
    assert Share(2, 3, 8).times(10) == Share(20, 30, 80)
    assert range(80)[Share(20, 30, 80).part] == range(20, 50)
    assert whole(7) == Share(0, 7, 7)
    assert whole(Share(2, 3, 8)) == Share(2, 3, 8)


@pytest.mark.parametrize(("rank", "world"), [(0, 0), (0, 3), (0, 16), (2, 2), (-1, 2), (1, 1)])
def test_ranks_and_worlds_that_cannot_be_are_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=f"no rank {rank} of {world}"):
        Shares(rank, world)
