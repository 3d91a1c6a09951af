"""Whatever comes in whatever order, on pools that are too small: no byte differs, no token either.

As test_exact_bytes, with random traffic: turns, repeats, edits, forks, aborts, several namespaces,
greedy and sampled, while pages and points are evicted and rows retracted all the time.
"""

import random

import pytest

from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.byte_ledger import ByteLedger
from tests.testing.network_rig import NetworkRig
from tests.testing.traffic import Ask, Traffic, shared_systems

# Room for two or three of the six rows at their longest.
TINY = ("--full-pages", "9", "--swa-pages", "28", "--rings", "12", "--max-running-requests", "6")
COLD = ("--disable-radix-cache", "--full-pages", "9", "--chunked-prefill-size", "-1")
ABORT_SHARE = 0.01  # of the turns


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return tiny_model_flags(tmp_path_factory.mktemp("model"))


def play(rig: NetworkRig, traffic: Traffic, requests: int) -> list[tuple[Ask, list[int]]]:
    """Send so many requests, up to ten at a time; return those that were not aborted, answered."""
    draw = traffic.draw
    asked: dict[int, Ask] = {}
    open_ids: set[int] = set()
    done: list[tuple[Ask, list[int]]] = []
    while len(asked) < requests or open_ids:
        while len(asked) < requests and len(open_ids) < 10 and draw.random() < 0.4:
            ask = traffic.next()
            for choice in range(ask.choices):
                request_id = rig.send(
                    ask.prompt,
                    ask.new_tokens,
                    namespace=ask.salt,
                    seed=ask.seed + choice,
                    temperature=ask.temperature,
                )
                asked[request_id] = ask
                open_ids.add(request_id)
        if open_ids and draw.random() < ABORT_SHARE:
            gone = draw.choice(sorted(open_ids))
            rig.abort(gone)
            open_ids.discard(gone)
        rig.turn()
        for request_id in sorted(open_ids):
            answer = rig.tokens(request_id)
            if answer:
                open_ids.discard(request_id)
                traffic.answered(asked[request_id], answer)
                done.append((asked[request_id], answer))
    return done


def hold(model: tuple[str, ...], *flags: str, seed: int, requests: int) -> NetworkRig:
    """Play a mixture, then ask each prompt cold, all under one ledger; return the mixture's rig."""
    ledger = ByteLedger()
    rig = NetworkRig(ledger, *model, *TINY, *flags)
    done = play(rig, Traffic(random.Random(seed), shared_systems(seed), most_new=120), requests)
    cold = NetworkRig(ledger, *model, *COLD)
    before = dict(ledger.compared)
    for ask, answer in done:
        if not ask.temperature:
            assert cold.ask(ask.prompt, ask.new_tokens) == answer, ask.kind
    for pool, count in before.items():
        assert ledger.compared[pool] > count, f"{pool}: nothing was compared with a cold run"
    return rig


def assert_pressed(rig: NetworkRig) -> None:
    """Fail unless all that makes reuse hard has happened.

    Retractions and replays are counted on in test_exact_bytes: here it depends on the draw.
    """
    counters = rig.counters
    again = counters["replayed_tokens"] + counters["recomputed_tokens"]
    assert again > 0, counters
    for name in ("cached_tokens", "evicted_pages", "evicted_points", "aborted_requests"):
        assert counters[name] > 0, f"{name}: {counters}"


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "policy", "every", "seed"),
    [(64, "turns", 0, 4), (127, "lru", 1, 3)],
    ids=lambda value: str(value),
)
def test_a_mixture_on_tiny_pools_leaves_the_bytes_of_cold_runs(
    model: tuple[str, ...], chunk: int, policy: str, every: int, seed: int
) -> None:
    flags = ("--eviction-policy", policy, "--resume-every-pages", str(every))
    rig = hold(model, *flags, "--chunked-prefill-size", str(chunk), seed=seed, requests=45)

    assert_pressed(rig)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", [1, 7, 64, 127, 128, 256, 2048])
@pytest.mark.parametrize(("policy", "every"), [("turns", 0), ("turns", 1), ("lru", 0), ("lru", 1)])
def test_a_long_mixture_on_tiny_pools_leaves_the_bytes_of_cold_runs(
    model: tuple[str, ...], chunk: int, policy: str, every: int
) -> None:
    flags = ("--eviction-policy", policy, "--resume-every-pages", str(every))
    rig = hold(model, *flags, "--chunked-prefill-size", str(chunk), seed=chunk, requests=80)

    assert_pressed(rig)
