"""Rows of one to eight tokens in a step: whatever is accepted, the bits are those of one by one."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from layers.models.deepseek_v4.model import ReferenceV4
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.weights.loading import fill_dummy
from mem_cache.spec import TreeSpec
from tests.testing.compare import assert_same_bits
from tests.testing.direct import CPU, Chunk, Direct, Point
from tests.testing.draft_rows import EVERY_OUTCOME, SingleTokens, Try, copies, verify
from tests.testing.row_bytes import assert_same_bytes, held, poison_rest
from tests.testing.tiny_model import CONFIG, PACKED, build, prompt

# Around ends of blocks of 4 and 128, of SWA pages, of the ring of windows (192), of full pages.
STARTS = (1, 60, 121, 127, 190, 249, 255)


@cache
def model(packed: bool = False) -> ReferenceV4:
    made = ReferenceV4(PACKED if packed else CONFIG, CPU, torch.float32)
    fill_dummy(made, 7)
    return made


def roomy(record_format: RecordFormat = "fp32", draft_tokens: int = 7) -> Direct:
    """Return the network over poisoned pools for many rows."""
    direct = Direct(
        model(record_format == "fp8"),
        record_format,
        full_pages=128,
        swa_pages=200,
        rings=50,
        draft_tokens=draft_tokens,
    )
    direct.poison()
    return direct


@pytest.mark.parametrize("start", STARTS)
def test_every_outcome_leaves_what_single_tokens_leave(start: int) -> None:
    tokens, direct = prompt(start + 17, seed=start), roomy()
    want = SingleTokens(build(model=model()), tokens, start=start)
    rows = copies(direct, tokens, start, len(EVERY_OUTCOME))

    verify(direct, [Try(row, *each) for row, each in zip(rows, EVERY_OUTCOME, strict=True)], want)
    # The positions that were rejected are computed again, more or less of them, and beyond.
    again = EVERY_OUTCOME[::-1]
    verify(direct, [Try(row, *each) for row, each in zip(rows, again, strict=True)], want)


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_rows_walk_on_beside_prompts_and_single_tokens(record_format: RecordFormat) -> None:
    start, length = (240, 300) if record_format == "fp32" else (120, 140)
    tokens, other, direct = prompt(length, seed=1), prompt(200, seed=2), roomy(record_format)
    made = model(record_format == "fp8")
    want = SingleTokens(build(record_format, model=made), tokens, start=start)
    cold = build(record_format, model=made)
    alone = cold.prefill(cold.row(other), logits=range(200))
    rows, company = copies(direct, tokens, start, 4), direct.row(other)
    draw = torch.Generator().manual_seed(3)

    def drawn(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=draw))

    while tries := [row for row in rows if row.done < length]:
        counts = [drawn(1, min(8, length - row.done)) for row in tries]
        outcomes = [Try(row, n, drawn(0, n - 1)) for row, n in zip(tries, counts, strict=True)]
        first = company.done
        stop = min(len(other), first + drawn(1, 30))
        chunks = [Chunk(company, stop, logits=range(first, stop))] if first < stop else []
        got = verify(direct, outcomes, want, chunks)
        assert_same_bits(got, alone[first:stop])


def test_a_chunk_of_few_prompt_tokens_is_no_different() -> None:
    tokens, direct = prompt(150, seed=5), roomy()
    cold = build(model=model())
    row, whole = direct.row(tokens), cold.row(tokens)
    want = cold.prefill(whole, logits=range(150))

    parts = [direct.prefill(row, stop=120, chunk=50, logits=range(150))]
    parts.append(direct.prefill(row, chunk=7, logits=range(150)))

    assert_same_bits(torch.cat(parts), want)
    assert_same_bytes(held(direct, row), held(cold, whole))


@pytest.mark.parametrize(("start", "count"), [(126, 8), (190, 5), (252, 5), (63, 1)])
def test_a_copy_made_with_guesses_serves_every_length_they_may_leave(
    start: int, count: int
) -> None:
    """So does a row whose step writes to other pages and another ring than it has read."""
    tokens, direct = prompt(start + 17, seed=start), roomy()
    want = SingleTokens(build(model=model()), tokens, start=start)
    for right in range(count):
        (row,) = copies(direct, tokens, start, 1)
        chunk = Try(row, count, right).chunk(tokens, CONFIG.vocab_size)
        end = start + right + 1
        _, (point,) = direct.step([Chunk(row, chunk.stop, points=[chunk.stop])])

        copied = direct.resume(tokens, Point(end, point.window, point.ring), row.pages)

        assert_same_bytes(held(direct, copied), want.bytes[end])
        poison_rest(direct, copied)
        verify(direct, [Try(copied, 8, 7)], want)


@pytest.mark.parametrize("window", [4, 100])
def test_short_windows_have_room_for_guesses_too(window: int) -> None:
    config = replace(CONFIG, sliding_window=window)
    made = ReferenceV4(config, CPU, torch.float32)
    fill_dummy(made, 7)
    start, tree = 126, TreeSpec(swa_page_size=4)
    tokens = prompt(start + 17, seed=1)
    one, direct = (
        Direct(made, "fp32", full_pages=80, swa_pages=3000, rings=50, tree=tree, draft_tokens=k)
        for k in (0, 7)
    )
    direct.poison()
    want = SingleTokens(one, tokens, start=start)
    rows = copies(direct, tokens, start, len(EVERY_OUTCOME))

    for outcomes in (EVERY_OUTCOME, EVERY_OUTCOME[::-1]):
        verify(direct, [Try(row, *each) for row, each in zip(rows, outcomes, strict=True)], want)


def test_fewer_guesses_take_fewer_banks() -> None:
    tokens, direct = prompt(137, seed=1), roomy(draft_tokens=2)
    want = SingleTokens(build(model=model()), tokens, start=124)
    outcomes = [(n, right) for n, right in EVERY_OUTCOME if n <= 3]
    rows = copies(direct, tokens, 124, len(outcomes))

    assert direct.spec.state_banks == 4
    for some in (outcomes, outcomes[::-1], outcomes):
        verify(direct, [Try(row, *each) for row, each in zip(rows, some, strict=True)], want)
