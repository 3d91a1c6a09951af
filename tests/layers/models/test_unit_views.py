"""Units as bytes: what local copies move inside pools goes from one pools to another's."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from layers.models.contract import Pools
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.models.deepseek_v4.pools import KvPools
from layers.models.page_pools import PagePools
from layers.models.unit_views import read_units, unit_bytes, write_units
from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.transfer import UnitIds
from tests.layers.models.deepseek_v4.test_pools import pools as v4_pools

CPU = torch.device("cpu")
LIVE = 2
SOURCE = UnitIds(pages=[4, 2], swa_pages=[1, 3], states=[5, 3])
TARGET = UnitIds(pages=[1, 5], swa_pages=[4, 2], states=[4, 6])


def v4(record_format: RecordFormat, *, draft_tokens: int = 0) -> KvPools:
    """Return pools of every kind; with draft tokens rows have states of another form."""
    spec = v4_pools(record_format).spec
    spec = replace(spec, tree=TreeSpec(draft_tokens=draft_tokens))
    live = LIVE if draft_tokens else 0
    return KvPools(spec, PoolSizes(5, 4, states=6, live_states=live), CPU)


def pages_alone() -> PagePools:
    """Return pools of few bytes."""
    return PagePools({"keys": torch.empty(2, 6, 16, 3), "few": torch.empty(3, 6, 4, 1).bfloat16()})


MAKERS: dict[str, Callable[[], Pools]] = {
    "fp8": lambda: v4("fp8"),
    "bf16": lambda: v4("bf16"),
    "fp32, two forms of states": lambda: v4("fp32", draft_tokens=3),
    "pages alone": pages_alone,
}


def units_of(made: Pools, units: UnitIds) -> UnitIds:
    """Return those of the pools that there are."""
    return units if isinstance(made, KvPools) else UnitIds(units.pages)


def raw(made: Pools) -> Mapping[str, Tensor]:
    """Return the bytes of each tensor, as a view."""
    return {name: tensor.view(torch.uint8).flatten() for name, tensor in made.tensors().items()}


def copy_locally(made: Pools) -> None:
    """Copy sources over targets, one after the other."""
    made.copy_full_pages([*zip(SOURCE.pages, TARGET.pages, strict=True)])
    made.copy_swa_pages([*zip(SOURCE.swa_pages, TARGET.swa_pages, strict=True)])
    made.copy_states([(a, b, 40) for a, b in zip(SOURCE.states, TARGET.states, strict=True)])


def origins(make: Callable[[], Pools]) -> Mapping[str, Tensor]:
    """Return from which byte of its tensor each byte comes in local copies, int64."""
    planes: list[Mapping[str, Tensor]] = []
    for plane in range(3):
        made = make()
        for data in raw(made).values():
            data.copy_((torch.arange(len(data)) >> (8 * plane)) & 255)
        copy_locally(made)
        planes.append(raw(made))
    return {
        name: sum(data[name].long() << (8 * k) for k, data in enumerate(planes))  # pyright: ignore
        for name in planes[0]
    }


@pytest.mark.parametrize("name", MAKERS)
def test_units_come_as_local_copies_have_them_and_nothing_else_changes(name: str) -> None:
    giver, taker = MAKERS[name](), MAKERS[name]()
    for made in (giver, taker):
        for data in raw(made).values():
            data.random_(256)
    before = {name: data.clone() for name, data in raw(taker).items()}
    source, target = units_of(giver, SOURCE), units_of(taker, TARGET)

    data = torch.cat(read_units(giver.unit_views(), source))
    write_units(taker.unit_views(), target, data)

    assert data.dtype == torch.uint8
    assert len(data) == unit_bytes(giver.unit_views(), source)
    for tensor, origin in origins(MAKERS[name]).items():
        here = torch.arange(len(origin))
        want = torch.where(origin == here, before[tensor], raw(giver)[tensor][origin])
        assert torch.equal(raw(taker)[tensor], want), tensor
        assert not torch.equal(want, before[tensor]), tensor


@pytest.mark.parametrize("name", MAKERS)
def test_no_units_are_no_bytes(name: str) -> None:
    views = MAKERS[name]().unit_views()

    assert unit_bytes(views, UnitIds()) == 0
    assert read_units(views, UnitIds()) == []
    write_units(views, UnitIds(), torch.empty(0, dtype=torch.uint8))


def test_layers_that_keep_no_records_have_no_bytes() -> None:
    made = v4_pools(ratios=(0, 0))

    assert unit_bytes(made.unit_views(), UnitIds(pages=[1, 2], states=[1])) == 0
    assert unit_bytes(made.unit_views(), UnitIds(swa_pages=[1])) == made.swa[:, 1].nbytes
