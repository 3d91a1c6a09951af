"""Pool tensors and copies of whole units."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.layout import cache_spec
from layers.models.deepseek_v4.pool_spec import PoolSpec, RecordFormat
from layers.models.deepseek_v4.pools import KvPools, state_entry
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.compare import assert_same_bits

CPU = torch.device("cpu")
COPIES = {
    "copy_full_pages": KvPools.copy_full_pages,
    "copy_swa_pages": KvPools.copy_swa_pages,
    "copy_states": lambda pools, pairs: pools.copy_states([(a, b, 1) for a, b in pairs]),
}
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

    cache = cache_spec(made.spec)
    want = (SIZES.full_pages + 1) * cache.full_page_bytes
    want += (SIZES.swa_pages + 1) * cache.swa_page_bytes
    want += (SIZES.states + 1) * cache.state_bytes
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

    COPIES[copy](made, [(2, 3)])

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


@pytest.mark.parametrize("copy", COPIES)
def test_copies_that_depend_on_each_other_keep_their_order(copy: str) -> None:
    at_once, one_by_one = pools(), pools()
    for name, tensor in at_once.tensors().items():
        one_by_one.tensors()[name].copy_(tensor)
    pairs = [(1, 2), (2, 3), (3, 1), (2, 1), (1, 3), (2, 3)]

    COPIES[copy](at_once, pairs)

    for pair in pairs:
        COPIES[copy](one_by_one, [pair])
    for name, tensor in at_once.tensors().items():
        assert_same_bits(tensor.view(torch.uint8), one_by_one.tensors()[name].view(torch.uint8))


def test_a_model_without_compression_has_empty_pools() -> None:
    made = pools(ratios=(0, 0))

    made.copy_full_pages([(1, 2)])
    made.copy_states([(1, 2, 9)])
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


class TwoForms:
    """States of rows with room for draft tokens, and those of resume points without."""

    def __init__(self, draft_tokens: int) -> None:
        spec = pools(ratios=(4, 128)).spec
        spec = replace(spec, tree=TreeSpec(draft_tokens=draft_tokens))
        self.live, self.spec = 2, spec
        self.pools = KvPools(spec, PoolSizes(1, 1, states=7, live_states=self.live), CPU)
        self.rows = self.pools.c4_state.fill_(-1).flatten(1, 2)
        self.banks = self.pools.c128_state.fill_(-1).flatten(1, 2)

    def entries(self, unit: int, positions: range) -> tuple[Tensor, Tensor]:
        """Return the state rows, and the banks, of positions."""
        at = torch.tensor(positions)
        units = torch.full_like(at, unit)
        rows = state_entry(units, at, entries=self.spec.state_rows, span=8, live=self.live)
        banks = state_entry(units, at, entries=self.spec.state_banks, span=2, live=self.live)
        return rows, banks

    def fill(self, unit: int, positions: range) -> None:
        """Write each position's number where the state has room for it."""
        rows, banks = self.entries(unit, positions)
        self.rows[0, rows] = torch.tensor(positions, dtype=torch.float32)[:, None]
        self.banks[0, banks] = torch.tensor(positions, dtype=torch.float32)[:, None, None]

    def holds(self, unit: int, position: int) -> bool:
        """Whether a state is what a request needs that goes on at a position."""
        rows, _ = self.entries(unit, range(max(0, position - 8), position))
        _, banks = self.entries(unit, range(max(0, position - 2), position))
        found = self.rows[0, rows, 0].tolist(), self.banks[0, banks, 0, 0].tolist()
        numbers = [float(p) for p in range(max(0, position - 8), position)]
        return found == (numbers, numbers[-2:])


@pytest.mark.parametrize("draft_tokens", [1, 4, 7])
@pytest.mark.parametrize("position", [1, 5, 8, 11, 100, 128])
def test_a_state_survives_being_packed_and_unpacked(draft_tokens: int, position: int) -> None:
    forms = TwoForms(draft_tokens)
    # A row has written some tokens more by the time at which its state is kept.
    forms.fill(1, range(max(0, position - 8), position + draft_tokens))
    others = [unit for unit in range(3, 8) if unit != 4]
    for unit in others:
        forms.fill(unit, range(200, 208))

    forms.pools.copy_states([(1, 4, position), (4, 7, position), (7, 2, position)])

    assert all(forms.holds(unit, position) for unit in (4, 7, 2))
    assert all(forms.holds(unit, 208) for unit in others if unit != 7)


def test_states_of_two_forms_take_the_room_of_both() -> None:
    forms = TwoForms(3)
    cache = cache_spec(forms.spec)

    # Rounded up to whole units of rows.
    least = 3 * cache.live_state_bytes + 5 * cache.state_bytes
    found = forms.pools.c4_state.nbytes + forms.pools.c128_state.nbytes
    assert least <= found < least + cache.live_state_bytes
