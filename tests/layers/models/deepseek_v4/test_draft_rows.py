"""Chunks of one to eight tokens, some of them wrong guesses: the bits of decoding one by one."""

from functools import cache

import pytest
import torch

from layers.models.deepseek_v4.model import QuantisedV4
from layers.weights.loading import fill_dummy
from tests.testing.compare import assert_same_bits
from tests.testing.direct import Chunk, Direct
from tests.testing.draft_rows import EVERY_OUTCOME, SingleTokens, Try, copies, verify
from tests.testing.fused_model import FusedModel
from tests.testing.row_bytes import assert_same_bytes
from tests.testing.tiny_model import EVERY_KIND, prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")

# Around ends of blocks of 4 and 128, of SWA pages, of the ring of windows (192), of full pages.
STARTS = (1, 59, 121, 124, 127, 186, 191, 249, 252, 255, 381)


@cache
def network(device: torch.device) -> QuantisedV4:
    """Return a deterministic network of random weights; made once."""
    with torch.random.fork_rng():
        made = QuantisedV4(EVERY_KIND, device, experts="fp8", deterministic=True)
        fill_dummy(made, 5)
    return made


def driven(device: torch.device, draft_tokens: int = 7) -> Direct:
    """Return the network over poisoned pools; steps of single tokens decode."""
    direct = Direct(
        FusedModel(network(device)),
        "fp8",
        full_pages=128,
        swa_pages=200,
        rings=50,
        draft_tokens=draft_tokens,
        device=device,
    )
    direct.poison()
    return direct


def check_outcomes(device: torch.device, start: int, outcomes: list[tuple[int, int]]) -> None:
    """Run rows of all outcomes in one step, then in another with other outcomes."""
    tokens, direct = prompt(start + 17, seed=start), driven(device)
    want = SingleTokens(driven(device, 0), tokens, start=start)
    rows = copies(direct, tokens, start, len(outcomes))
    for some in (outcomes, outcomes[::-1]):
        verify(direct, [Try(row, *each) for row, each in zip(rows, some, strict=True)], want)


def test_guesses_leave_what_single_tokens_leave(device: torch.device) -> None:
    check_outcomes(device, 124, [(8, 2), (5, 4), (1, 0), (8, 7)])


@pytest.mark.gpu
@pytest.mark.parametrize("start", STARTS)
def test_on_the_gpu_every_outcome_leaves_what_single_tokens_leave(start: int) -> None:
    device = torch.device("cuda")
    with device:
        check_outcomes(device, start, EVERY_OUTCOME)


@pytest.mark.gpu
@pytest.mark.parametrize("start", [60, 124, 187, 250])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_on_the_gpu_a_row_alone_has_the_bits_of_single_tokens(start: int, count: int) -> None:
    """Small steps have kernels of their own."""
    device = torch.device("cuda")
    with device:
        for right in {0, count - 1}:
            check_outcomes(device, start, [(count, right)])


@pytest.mark.gpu
def test_on_the_gpu_rows_walk_on_beside_a_prompt() -> None:
    device, draw = torch.device("cuda"), torch.Generator("cpu").manual_seed(3)

    def drawn(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=draw, device="cpu"))

    with device:
        tokens, other, direct = prompt(300, seed=1), prompt(500, seed=2), driven(device)
        want, cold = SingleTokens(driven(device, 0), tokens, start=100), driven(device, 0)
        alone = cold.prefill(cold.row(other), logits=range(len(other)))
        rows, company = copies(direct, tokens, 100, 12), direct.row(other)
        while tries := [row for row in rows if row.done < len(tokens)]:
            counts = [drawn(1, min(8, len(tokens) - row.done)) for row in tries]
            outcomes = [Try(row, n, drawn(0, n - 1)) for row, n in zip(tries, counts, strict=True)]
            first = company.done
            stop = min(len(other), first + drawn(1, 30))
            chunks = [Chunk(company, stop, logits=range(first, stop))] if first < stop else []
            assert_same_bits(verify(direct, outcomes, want, chunks), alone[first:stop])


@pytest.mark.parametrize("start", [124, pytest.param(250, marks=pytest.mark.gpu)])
def test_decoding_over_larger_rings_changes_no_bit(device: torch.device, start: int) -> None:
    tokens = prompt(start + (16 if device.type == "cuda" else 5), seed=3)
    want, got = (SingleTokens(driven(device, k), tokens, start=start) for k in (0, 7))

    for position, logits in want.logits.items():
        assert_same_bits(got.logits[position], logits, what=f"position {position}")
    for length, kept in want.bytes.items():
        assert_same_bytes(got.bytes[length], kept, what=f"length {length}")
