"""Tables of a step of chunks, against what its tokens say one by one; no one waits for a device."""

import dataclasses

import pytest
import torch
from torch import Tensor

from jit_kernels.prefill_indices import BlockList
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.plan import ChunkPlan, plan_chunks
from layers.steps.chunks.step import PrefillStep
from layers.steps.contract import StepSizes
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import PoolSizes
from tests.testing.attention_pair import CONFIG
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.usefixtures("poisoned_empty")

SPEC = pool_spec(CONFIG, "fp8")
START, LENGTH, WRITE_FROM = (250, 5, 0), (300, 2, 128), (300, 5, 0)


def batch() -> ForwardBatch:
    """Return three rows in host memory; the first replays from 250, the last begins."""

    def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device="cpu")

    def table(*rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device="cpu")

    return ForwardBatch(
        input_ids=torch.arange(sum(LENGTH), device="cpu") + 1000,
        chunk_start=ints(*START),
        chunk_len=ints(*LENGTH),
        page_table=table([3, 4, 6], [7, 0, 0], [5, 0, 0]),
        window=table([0, 0], [1, 0], [0, 0]),
        ring=ints(1, 2, 3, dtype=torch.int32),
        window_from=ints(250, 0, 0),
        write_from=ints(*WRITE_FROM),
        save_row=ints(0, 1, 2),
        save_position=ints(550, 7, 128),
        save_ring=ints(1, 2, 3, dtype=torch.int32),
        save_window=table([8, 9], [1, 0], [12, 13]),
        logit_tokens=ints(429, 299),
    )


def plan_on(device: torch.device, step: ForwardBatch | None = None, top_k: int = 8) -> ChunkPlan:
    """Return the plan of the step."""
    return plan_chunks(step or batch(), SPEC, top_k=top_k, device=device)


def each_token() -> list[tuple[int, int]]:
    """Return (row, position) of every token."""
    chunks = enumerate(zip(START, LENGTH, strict=True))
    return [(row, start + i) for row, (start, length) in chunks for i in range(length)]


def tables(plan: ChunkPlan) -> dict[str, Tensor]:
    """Return all tensors of a plan by their names."""
    parts = {"step": plan, "keys": plan.keys}
    parts |= {f"{ratio}": part for ratio, part in plan.blocks.items()}
    return {
        f"{name}.{field.name}": value
        for name, part in parts.items()
        if part is not None
        for field in dataclasses.fields(part)
        if isinstance(value := getattr(part, field.name), Tensor)
    }


def test_tokens_lie_end_to_end_beside_what_the_batch_says(device: torch.device) -> None:
    step, plan = batch(), plan_on(device)

    found = zip(plan.row.tolist(), plan.position.tolist(), strict=True)
    assert list(found) == each_token()
    assert (plan.rows, plan.count, plan.device.type) == (3, 430, device.type)
    told = ("input_ids", "logit_tokens", "chunk_start", "chunk_len", "window_from")
    for name in (*told, "page_table", "window", "ring"):
        assert_same_bits(getattr(plan, name).cpu(), getattr(step, name), what=name)


@pytest.mark.parametrize("ratio", [4, 128])
def test_blocks_are_those_that_tokens_end_and_rows_list(device: torch.device, ratio: int) -> None:
    step, blocks = batch(), plan_on(device).blocks[ratio]
    ended = [
        (token, int(step.page_table[row, position // 256]), position)
        for token, (row, position) in enumerate(each_token())
        if (position + 1) % ratio == 0 and position >= WRITE_FROM[row]
    ]

    assert blocks.last.tolist() == [token for token, _, _ in ended]
    slots = [page * (256 // ratio) + position % 256 // ratio for _, page, position in ended]
    assert blocks.slots.tolist() == slots
    assert blocks.first.tolist() == [position + 1 - ratio for _, _, position in ended]
    each = [(start + length) // ratio for start, length in zip(START, LENGTH, strict=True)]
    assert blocks.base.tolist() == [0, each[0], each[0] + each[1]]
    assert (blocks.count, blocks.columns) == (sum(each), max(each))


@pytest.mark.parametrize(("ratio", "span"), [(4, 8), (128, 2)])
def test_rings_keep_what_is_not_there_already(device: torch.device, ratio: int, span: int) -> None:
    blocks = plan_on(device).blocks[ratio]

    saved = [(1, p, p - 250) for p in range(550 - span, 550)]
    saved += [(2, p, 300 + p - 5) for p in (5, 6)]
    saved += [(3, p, 302 + p) for p in range(128 - span, 128)]
    assert blocks.target.tolist() == [ring * span + p % span for ring, p, _ in saved]
    assert blocks.source.tolist() == [3 * span + token for _, _, token in saved]


def test_windows_keep_what_is_not_there_already(device: torch.device) -> None:
    plan = plan_on(device)

    saved = [((8, 9)[p // 64 % 2], p, p - 250) for p in range(550 - 128, 550)]
    saved += [(1, p, 300 + p - 5) for p in (5, 6)]
    saved += [((12, 13)[p // 64], p, 302 + p) for p in range(128)]
    assert plan.wanted.tolist() == [page * 64 + p % 64 for page, p, _ in saved]
    assert plan.kept.tolist() == [3 * 127 + token for _, _, token in saved]


def test_keys_are_listed_page_by_page_where_tokens_choose(device: torch.device) -> None:
    keys = plan_on(device).keys

    # 137 blocks of the first row take three pages, one and 32 of the others a page each.
    assert keys is not None
    assert keys.pages.tolist() == [3, 4, 6, 7, 5]
    assert keys.start.tolist() == [(0, 192, 256)[row] for row, _ in each_token()]
    assert keys.visible.tolist() == [(position + 1) // 4 for _, position in each_token()]
    assert torch.equal(keys.end, keys.start + keys.visible)
    assert plan_on(device, top_k=137).keys is None


def test_a_batch_elsewhere_is_brought_to_the_host(device: torch.device) -> None:
    step = batch()
    moved = {f.name: getattr(step, f.name).to(device) for f in dataclasses.fields(step)}

    want, got = tables(plan_on(device)), tables(plan_on(device, ForwardBatch(**moved)))

    assert list(got) == list(want)
    for name, table in want.items():
        assert_same_bits(got[name], table, what=name)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("top_k", [8, 512])
def test_a_step_is_made_without_a_look_at_what_the_device_holds(
    monkeypatch: pytest.MonkeyPatch, top_k: int, deterministic: bool
) -> None:
    # Tensors of this device hold nothing: whoever asks for a number of theirs fails.
    nowhere = torch.device("meta")
    pools = KvPools(SPEC, PoolSizes(16, 16, 8), nowhere)

    def slots(
        start: Tensor, *_: Tensor, blocks: tuple[BlockList, ...], **__: object
    ) -> list[Tensor]:
        # The reference reads what it is given; the kernel is a launch.
        counts = (start.shape[0] * 127, *(part.count for part in blocks))
        return [torch.empty(count, dtype=torch.int32, device=nowhere) for count in counts]

    monkeypatch.setattr("layers.steps.chunks.step.prefill_slots", slots)
    sizes, rope = StepSizes(top_k, CONFIG.rms_norm_eps), angles(CONFIG, nowhere)

    step = PrefillStep(batch(), pools, sizes, rope, deterministic=deterministic)

    assert step.rotation(compressed=True).shape == (430, 2, 64)
    assert (step.input_ids.device, step.logit_tokens.shape) == (nowhere, (2,))
