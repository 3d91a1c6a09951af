"""Pool tensors and copies of whole units."""

import pytest
import torch

from layers.models.deepseek_v4.layout import full_page_bytes, ring_bytes, swa_page_bytes
from layers.models.deepseek_v4.pool_spec import PoolSpec, RecordFormat
from layers.models.deepseek_v4.pools import KvPools, apart
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.compare import assert_same_bits

CPU = torch.device("cpu")
SIZES = PoolSizes(full_pages=5, swa_pages=4, states=3)


def pools(record_format: RecordFormat = "fp8", ratios: tuple[int, ...] = (0, 4, 128, 4)) -> KvPools:
    """Return pools of random bytes."""
    spec = PoolSpec(
        tree=TreeSpec(),
        layer_ratios=ratios,
        head_dim=128,
        rope_dim=64,
        index_head_dim=32,
        record_format=record_format,
    )
    result = KvPools(spec, SIZES, CPU)
    for tensor in result.tensors().values():
        tensor.view(torch.uint8).random_(256)
    return result


@pytest.mark.parametrize("record_format", ["fp8", "bf16", "fp32"])
def test_bytes_are_the_units_and_one_dummy_of_each_kind(record_format: RecordFormat) -> None:
    made = pools(record_format)

    want = (SIZES.full_pages + 1) * full_page_bytes(made.spec)
    want += (SIZES.swa_pages + 1) * swa_page_bytes(made.spec)
    want += (SIZES.states + 1) * ring_bytes(made.spec)
    # C128 records come in whole blocks, of which the last one need not be full.
    assert want <= made.bytes < want + made.c128_layout.page_bytes


def test_c128_blocks_hold_the_records_of_all_pages_and_the_dummy() -> None:
    made = KvPools(pools().spec, PoolSizes(full_pages=64, swa_pages=1, states=1), CPU)

    # 65 pages of two records each.
    assert made.c128.shape == (1, 3, made.c128_layout.page_bytes)


def test_layers_of_a_kind_are_counted_apart() -> None:
    made = pools()

    assert [made.nth(layer) for layer in (1, 2, 3)] == [0, 0, 1]
    assert made.c4.shape[0] == made.indexer.shape[0] == made.c4_state.shape[0] == 2
    assert made.c128.shape[0] == made.c128_state.shape[0] == 1
    assert made.swa.shape[0] == 4


def test_the_records_of_a_compressing_layer_lie_in_the_pool_of_its_ratio() -> None:
    made = pools()

    for layer, pool, layout in (
        (3, made.c4[1], made.c4_layout),
        (2, made.c128[0], made.c128_layout),
    ):
        pages, found = made.blocks(layer)
        assert pages.data_ptr() == pool.data_ptr()
        assert found == layout
    with pytest.raises(KeyError):
        made.blocks(0)


@pytest.mark.parametrize(
    ("copy", "names"),
    [
        ("copy_full_pages", {"c4", "indexer", "c128"}),
        ("copy_swa_pages", {"swa"}),
        ("copy_states", {"c4_state", "c128_state"}),
    ],
)
def test_a_copy_takes_one_unit_of_every_layer_and_no_other(copy: str, names: set[str]) -> None:
    made = pools()
    before = {name: tensor.clone() for name, tensor in made.tensors().items()}

    getattr(made, copy)([(2, 3)])

    for name, tensor in made.tensors().items():
        want = before[name]
        if name in names and name == "c128":
            data, scale = made.c128_layout.data_bytes, made.c128_layout.scale_bytes
            for source, target in ((4, 6), (5, 7)):
                for at, size in ((0, data), (64 * data, scale)):
                    old, new = at + source * size, at + target * size
                    want[:, 0, new : new + size] = want[:, 0, old : old + size]
        elif name in names:
            want[:, 3] = want[:, 2]
        assert torch.equal(tensor.view(torch.uint8), want.view(torch.uint8)), name


@pytest.mark.parametrize("copy", ["copy_full_pages", "copy_swa_pages", "copy_states"])
def test_copies_that_depend_on_each_other_keep_their_order(copy: str) -> None:
    at_once, one_by_one = pools(), pools()
    for name, tensor in at_once.tensors().items():
        one_by_one.tensors()[name].copy_(tensor)
    pairs = [(1, 2), (2, 3), (3, 1), (2, 1), (1, 3), (2, 3)]

    getattr(at_once, copy)(pairs)

    for pair in pairs:
        getattr(one_by_one, copy)([pair])
    for name, tensor in at_once.tensors().items():
        assert_same_bits(tensor.view(torch.uint8), one_by_one.tensors()[name].view(torch.uint8))


def test_copies_go_together_unless_one_waits_for_another() -> None:
    assert [*apart([])] == []
    assert [*apart([(1, 2), (1, 3), (4, 5)])] == [[(1, 2), (1, 3), (4, 5)]]
    assert [*apart([(1, 2), (2, 3)])] == [[(1, 2)], [(2, 3)]]
    assert [*apart([(1, 2), (3, 2), (3, 4)])] == [[(1, 2)], [(3, 2), (3, 4)]]
    assert [*apart([(1, 2), (3, 1)])] == [[(1, 2)], [(3, 1)]]


def test_a_model_without_compression_has_empty_pools() -> None:
    made = pools(ratios=(0, 0))

    made.copy_full_pages([(1, 2)])
    made.copy_states([(1, 2)])
    assert made.bytes == made.swa.nbytes


def test_a_page_that_holds_no_whole_block_is_refused() -> None:
    spec = PoolSpec(
        tree=TreeSpec(page_size=64, swa_page_size=16),
        layer_ratios=(128,),
        head_dim=8,
        rope_dim=4,
        index_head_dim=8,
        record_format="fp32",
    )
    with pytest.raises(ValueError, match="multiple of the ratios"):
        KvPools(spec, SIZES, CPU)
