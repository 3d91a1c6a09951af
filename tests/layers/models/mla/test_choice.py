"""Choices over packed keys: the best positions that a token sees, as slots of its row's pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.chunk_logits import chunk_logits
from jit_kernels.paged_logits import paged_logits
from layers.models.mla.choice import Choice, ChunkChoice, TokenChoice
from layers.models.mla.sparse_pools import SparsePage, SparsePools
from layers.steps.decode_rows import DecodeRows
from layers.steps.page_places import of_chunks, of_rows
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.compare import assert_same_bits
from tests.testing.page_rig import PADDING, PagedRow, chunk_batch, page_table

MODULE = "layers.models.mla.choice"
CPU = torch.device("cpu")
WIDTH, HEADS, PAGE = 64, 32, 256
TREE = TreeSpec(PAGE, window=0, has_state=False)
# Tokens computed, and tokens of the chunk, of each row.
ROWS = [(513, 40), (0, 3), (300, 1), (100, 90)]


@dataclass(frozen=True)
class Case:
    """Rows over scattered pages of random keys, and queries of the tokens of their chunks."""

    pools: SparsePools
    rows: list[PagedRow]
    q: Tensor
    weights: Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]]) -> "Case":
        """Return one; keys that nobody may see are NaN."""
        ends, free = [start + count for start, count in rows], torch.randperm(12).tolist()
        made = [
            PagedRow([0] * end, start, [free.pop() + 1 for _ in range(-(-end // PAGE))])
            for (start, _), end in zip(rows, ends, strict=True)
        ]
        page = SparsePage(PAGE, 512 + 64, 64, WIDTH, "fp8")
        pools = SparsePools(1, page, PoolSizes(12, 0, 0), CPU)
        pools.keys.fill_(255)
        for row, end in zip(made, ends, strict=True):
            pools.store_keys(0, slots_of(row, torch.arange(end)), torch.randn(end, WIDTH))
        tokens = sum(count for _, count in rows)
        codes = torch.randn(tokens, HEADS, WIDTH).to(torch.float8_e4m3fn)
        return cls(pools, made, codes, torch.randn(tokens, HEADS))

    def chosen(self, made: Choice, part: slice = slice(None)) -> Tensor:
        """Return the slots that the layer's tokens attend."""
        groups, layout = self.pools.key_groups(0), self.pools.key_layout
        return made.slots(groups, layout, self.q[part].contiguous(), self.weights[part])

    def wanted(self, most: int) -> list[list[int]]:
        """Return the slots of the best positions that each token sees, in their order."""
        found, token = list[list[int]](), 0
        for row in self.rows:
            keys = self.pools.read_keys(0, slots_of(row, torch.arange(len(row.tokens))))
            for position in range(row.done, len(row.tokens)):
                products = (self.q[token].float() @ keys[: position + 1].T).relu()
                scores = self.weights[token] @ products
                best = scores.topk(min(most, position + 1)).indices.sort().values
                found.append(slots_of(row, best).tolist())
                token += 1
        return found


def slots_of(row: PagedRow, position: Tensor) -> Tensor:
    """Return where positions of a row lie, [n] int64."""
    return torch.tensor(row.pages)[position // PAGE] * PAGE + position % PAGE


def in_chunks(case: Case, kind: type[ChunkChoice | TokenChoice], most: int) -> Choice:
    """Return the choice of a step of the rows' chunks."""
    batch = chunk_batch([(row, len(row.tokens)) for row in case.rows])
    places = of_chunks(batch, TREE, CPU)
    if kind is TokenChoice:
        return TokenChoice(places, page_tokens=PAGE, chosen=most)
    return ChunkChoice(batch, places, page_tokens=PAGE, chosen=most)


def lists(slots: Tensor) -> list[list[int]]:
    """Return the slots of each token; all behind the first -1 is -1."""
    assert slots.shape[1] % 64 == 0
    counts = (slots >= 0).sum(1).tolist()
    found = [row[:count].tolist() for row, count in zip(slots, counts, strict=True)]
    assert all(bool((row[count:] == -1).all()) for row, count in zip(slots, counts, strict=True))
    return found


@pytest.mark.parametrize("most", [100, 64, 2048])
@pytest.mark.parametrize("kind", [ChunkChoice, TokenChoice])
def test_tokens_of_chunks_get_the_best_that_they_see(
    kind: type[ChunkChoice | TokenChoice], most: int
) -> None:
    case = Case.of(ROWS)

    assert lists(case.chosen(in_chunks(case, kind, most))) == case.wanted(most)


@pytest.mark.parametrize("kind", [ChunkChoice, TokenChoice])
def test_slices_change_nothing(
    kind: type[ChunkChoice | TokenChoice], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, sizes = Case.of(ROWS), list[int]()
    want = case.chosen(in_chunks(case, kind, 100))
    score = chunk_logits if kind is ChunkChoice else paged_logits

    def counted(*args: Any, **more: Any) -> Tensor:
        scores = score(*args, **more)
        sizes.append(scores.numel())
        return scores

    monkeypatch.setattr(f"{MODULE}.SCORES_BYTES", 4 * 9_000)
    monkeypatch.setattr(f"{MODULE}.{score.__name__}", counted)

    assert_same_bits(case.chosen(in_chunks(case, kind, 100)), want)
    assert len(sizes) > 5
    assert max(sizes) <= 9_000


@pytest.mark.parametrize("most", [100, 4096])
def test_decoding_rows_choose_as_chunks_do_and_padding_chooses_nothing(most: int) -> None:
    case = Case.of([(513, 1), (300, 1), (0, 1), (100, 1)])
    table = page_table(case.rows)
    rows = DecodeRows.empty(len(table) + PADDING, pages=5, window_pages=1, device=CPU)
    rows.page_table[: len(table), : table.shape[1]] = table
    rows.position[: len(table)] = torch.tensor([row.done for row in case.rows])
    padded = Case(
        case.pools,
        case.rows,
        torch.cat((case.q, case.q[:PADDING])),
        torch.cat((case.weights, case.weights[:PADDING])),
    )

    made = TokenChoice(of_rows(rows, TREE), page_tokens=PAGE, chosen=most)
    got = lists(padded.chosen(made))

    assert got == [*case.wanted(most), *[[]] * PADDING]
