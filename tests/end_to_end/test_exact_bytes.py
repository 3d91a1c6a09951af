"""Reuse is invisible to the byte: in float32 every pool has the same bytes for the same prefix.

A whole scheduler runs in this process. After every turn all that a running row may read again is
compared with what the same prefix had whenever it was seen before: computed cold and whole, in
chunks, in company, continued, replayed, forked, retracted and back.
"""

import random

import pytest
import torch

from runtime.executor.record_watch import Unwatched
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.byte_ledger import ByteLedger
from tests.testing.network_rig import NetworkRig

CHUNKS = [1, 7, 64, 127, 128, 256, 2048]
ROOM = ("--full-pages", "40", "--swa-pages", "60", "--rings", "30")
# Each kind of layer, and one whose input comes from those: more are only slower.
LAYERS = {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0]}
REPLAY_TOKENS = 128 + 127 * 3
NEW_TOKENS = 12
POOLS = {"swa", "c4", "indexer", "c128", "c4_state", "c128_state"}


def words(seed: int, count: int) -> list[int]:
    """Return random token ids."""
    draw = random.Random(seed)
    return [draw.randrange(10, 500) for _ in range(count)]


LONG = words(seed=1, count=800)
SHORT = words(seed=2, count=301)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return tiny_model_flags(tmp_path_factory.mktemp("model"), **LAYERS)


def chunked(chunk: int) -> tuple[str, ...]:
    """Return the flags that prefill in chunks of so many tokens."""
    return ("--chunked-prefill-size", str(chunk))


COLD = ("--disable-radix-cache", *ROOM)


@pytest.fixture(scope="module")
def cold(model: tuple[str, ...]) -> tuple[ByteLedger, list[int], list[int]]:
    """What LONG and SHORT have cold, whole and alone, and the tokens that follow them.

    LONG token by token as well: so that its windows and rings are known at every position.
    """
    ledger = ByteLedger()
    whole = NetworkRig(ledger, *model, *COLD, *chunked(-1))
    after_long, after_short = whole.ask(LONG, NEW_TOKENS), whole.ask(SHORT, NEW_TOKENS)
    single = NetworkRig(ledger, *model, *COLD, *chunked(1), check=False)
    assert single.ask(LONG, NEW_TOKENS) == after_long
    return ledger, after_long, after_short


def assert_compared(ledger: ByteLedger, before: dict[str, int]) -> None:
    """Fail unless every pool had something to compare since `before`."""
    for pool in POOLS:
        assert ledger.compared[pool] > before[pool], f"{pool}: nothing was compared"


Cold = tuple[ByteLedger, list[int], list[int]]


@pytest.mark.parametrize(
    "chunk", [pytest.param(n, marks=pytest.mark.slow if n == 7 else ()) for n in CHUNKS[1:]]
)
def test_chunks_of_any_size_leave_the_same_bytes(
    model: tuple[str, ...], cold: Cold, chunk: int
) -> None:
    ledger, after_long, after_short = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *COLD, *chunked(chunk))

    assert rig.ask(LONG, NEW_TOKENS) == after_long
    assert rig.ask(SHORT, NEW_TOKENS) == after_short

    assert rig.counters["cached_tokens"] == 0
    assert_compared(ledger, before)


@pytest.mark.parametrize("chunk", [64, 127, 2048])
def test_company_leaves_the_same_bytes(model: tuple[str, ...], cold: Cold, chunk: int) -> None:
    ledger, after_long, after_short = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *COLD, *chunked(chunk))
    for seed, count in enumerate((3, 70, 129, 400), start=10):
        rig.send(words(seed, count), 30)
    rig.turn()

    long, short = rig.send(LONG, NEW_TOKENS), rig.send(SHORT, NEW_TOKENS)
    rig.run()

    assert (rig.tokens(long), rig.tokens(short)) == (after_long, after_short)
    assert_compared(ledger, before)


@pytest.mark.parametrize("chunk", [64, 127, 2048])
def test_a_page_hit_leaves_the_same_bytes(model: tuple[str, ...], cold: Cold, chunk: int) -> None:
    ledger, after_long, _ = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(chunk), "--resume-every-pages", "1")
    rig.ask([*LONG[:512], *words(3, 40)])

    hit = rig.send(LONG, NEW_TOKENS)
    rig.run()

    assert rig.cached(hit) == 512
    assert rig.counters["replayed_tokens"] == rig.counters["recomputed_tokens"] == 0
    assert rig.tokens(hit) == after_long
    assert_compared(ledger, before)


@pytest.mark.parametrize("turn", [1, 63, 255, 256, 300, 513, 798])
def test_an_exact_continuation_leaves_the_same_bytes(
    model: tuple[str, ...], cold: Cold, turn: int
) -> None:
    ledger, after_long, _ = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(100))
    rig.ask(LONG[:turn], 0)

    second = rig.send(LONG, NEW_TOKENS)
    rig.run()

    assert rig.cached(second) == turn
    assert rig.tokens(second) == after_long
    assert_compared(ledger, before)


def test_an_answer_continued_leaves_the_bytes_of_one_prompt(
    model: tuple[str, ...], cold: Cold
) -> None:
    ledger, after_long, _ = cold
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(100))
    answer = rig.ask(LONG, 7)

    second = rig.send([*LONG, *answer], NEW_TOKENS - 7)
    rig.run()

    assert rig.cached(second) == len(LONG) + 6
    assert [*answer, *rig.tokens(second)] == after_long


def test_a_repeated_prompt_leaves_the_same_bytes(model: tuple[str, ...], cold: Cold) -> None:
    ledger, after_long, _ = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(100))
    rig.ask(LONG, 0)

    again = rig.send(LONG, NEW_TOKENS)
    rig.run()

    assert rig.cached(again) == len(LONG) - 1
    assert rig.tokens(again) == after_long
    assert_compared(ledger, before)


# Where the replay begins: within the first span of 128, in its second half, behind a page.
_FULL = (573, 700, 768)
# Each chunk at one place for everybody, at all of them for those with time.
_QUICK = [(768, 7), (768, 64), (573, 127), (700, 128), (573, 256), (700, 2048)]
_REST = [(full, chunk) for full in _FULL for chunk in CHUNKS if (full, chunk) not in _QUICK]


@pytest.mark.parametrize(
    ("full", "chunk"),
    [
        *_QUICK,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in _REST),
    ],
)
def test_a_replay_leaves_the_same_bytes(
    model: tuple[str, ...], cold: Cold, full: int, chunk: int
) -> None:
    ledger, after_long, _ = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(chunk))
    rig.ask([*LONG[:full], *words(4, 60)])
    residency = rig.replica.residency
    residency.cache.evict_swa(states=residency.states.capacity)

    replayed = rig.send(LONG, NEW_TOKENS)
    rig.run()

    assert rig.cached(replayed) == full - REPLAY_TOKENS
    assert rig.counters["replayed_tokens"] == REPLAY_TOKENS
    assert rig.tokens(replayed) == after_long
    assert_compared(ledger, before)


def test_forks_leave_the_same_bytes(model: tuple[str, ...], cold: Cold) -> None:
    ledger, after_long, _ = cold
    before = dict(ledger.compared)
    rig = NetworkRig(ledger, *model, *ROOM, *chunked(100))

    forks = [rig.send(LONG, NEW_TOKENS) for _ in range(4)]
    others = [rig.send(LONG, NEW_TOKENS, seed=k, temperature=1.5) for k in range(3)]
    rig.run()

    assert [rig.tokens(fork) for fork in forks] == [after_long] * 4
    assert len({tuple(rig.tokens(other)) for other in others}) == 3
    assert rig.counters["computed_prompt_tokens"] < 1.2 * len(LONG), "the prompt is computed once"
    assert_compared(ledger, before)


@pytest.mark.parametrize(
    ("chunk", "pages"), [(64, 5), (64, 6), pytest.param(2048, 5, marks=pytest.mark.slow)]
)
def test_a_retracted_request_comes_back_to_the_same_bytes(
    model: tuple[str, ...], cold: Cold, chunk: int, pages: int
) -> None:
    """With 5 pages an older request while the newest waits for it, with 6 the newest."""
    ledger, _, after_short = cold
    before = dict(ledger.compared)
    pools = ("--full-pages", str(pages), "--swa-pages", "16", "--rings", "8")
    rig = NetworkRig(ledger, *model, *pools, *chunked(chunk))
    older = [rig.send(words(seed, 490), 40) for seed in (5, 6)]
    rig.turn()

    newest = rig.send(SHORT, 40)
    rig.run()

    assert rig.counters["retracted_requests"] > 0, "the pages were meant to be too few"
    assert rig.tokens(newest)[:NEW_TOKENS] == after_short
    alone = NetworkRig(ledger, *model, *COLD)
    assert alone.ask(SHORT, 40) == rig.tokens(newest)
    for seed, request_id in zip((5, 6), older, strict=True):
        assert alone.ask(words(seed, 490), 40) == rig.tokens(request_id)
    assert_compared(ledger, before)


@pytest.mark.parametrize("pool", sorted(POOLS))
def test_the_ledger_sees_a_single_bit(model: tuple[str, ...], cold: Cold, pool: str) -> None:
    """In the page, window or ring of a running row: what all the tests above rely on."""
    ledger, _, _ = cold
    rig = NetworkRig(ledger, *model, *COLD)
    rig.runner._watch = Unwatched()  # which would see it first
    rig.send(SHORT, NEW_TOKENS)
    while not len(rig.replica.sets.decoding):
        rig.turn()

    rig.pools.tensors()[pool].view(torch.uint8).bitwise_xor_(1)

    with pytest.raises(AssertionError, match=f"{pool}: other bytes"):
        rig.turn()
