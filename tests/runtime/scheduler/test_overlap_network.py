"""On the real network: whoever goes on after an answer has the bits of a cold run."""

import pytest

from layers.models.deepseek_v4.model import ReferenceV4
from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Logprobs, TokenLogprobs
from runtime.scheduler.resume_policy import ResumePolicy
from tests.testing.byte_ledger import ByteLedger
from tests.testing.cpu_runner import cpu_runner, tiny_network
from tests.testing.scheduler_rig import Rig
from tests.testing.tiny_model import prompt

SIZES = PoolSizes(full_pages=16, swa_pages=60, states=20)
TAIL = 9


@pytest.fixture(scope="module")
def model() -> ReferenceV4:
    """A random network with every kind of layer."""
    return tiny_network()


@pytest.fixture(scope="module")
def ledger() -> ByteLedger:
    """What every prefix of this network was seen to leave in the pools."""
    return ByteLedger()


class Watched:
    """A scheduler on that network, each row of it held against the ledger after every turn."""

    def __init__(
        self,
        model: ReferenceV4,
        ledger: ByteLedger,
        *,
        overlap: bool,
        reuse: bool,
        sizes: PoolSizes = SIZES,
        chunk: int = 100,
        resume: ResumePolicy | None = None,
    ) -> None:
        self._pools = model.pools(sizes)
        self._ledger = ledger
        runner = cpu_runner(model, self._pools)
        self.rig = Rig(
            sizes,
            spec=TreeSpec(),
            chunk=chunk,
            reuse=reuse,
            runner=runner,
            overlap=overlap,
            resume=resume,
        )

    def run(self) -> None:
        """Turn until nothing is left to do."""
        scheduler, replica = self.rig.scheduler, self.rig.replica
        while self.rig.busy:
            scheduler.turn()
            for request in replica.sets.running:
                if request.scheduled - request.committed <= 1:
                    self._ledger.look(self._pools, replica.residency, request)

    def ask(self, text: list[int], new: int, stop: tuple[int, ...] = ()) -> list[int]:
        """Return the tokens that follow."""
        request = self.rig.send(text, new, stop=stop)
        self.run()
        return self.rig.tokens(request)

    def values(self, text: list[int], new: int) -> tuple[list[int], TokenLogprobs, int]:
        """Return the tokens that follow, their log-probabilities, and what was cached."""
        request = self.rig.send(text, new, logprobs=Logprobs(len(text), top=5))
        self.run()
        parts = [o.logprobs for o in self.rig.outputs(request) if o.logprobs is not None]
        whole = TokenLogprobs(
            [v for p in parts for v in p.values],
            [i for p in parts for i in p.ids],
            [t for p in parts for t in p.top],
        )
        return self.rig.tokens(request), whole, self.rig.cached(request)


ENDS = (5, 64, 65, 68, 128, 129, 131, 193, 256, 257, 384)
# Ends beside others of their kind: of a block, of a window, of a page.
ALIKE = (64, 68, 129, 193, 256, 384)
BY_STOP = [
    pytest.param(end, "stop", marks=(pytest.mark.slow,) if end in ALIKE else ()) for end in ENDS
]
# Ends of both kinds leave the same behind: one kind at a few places is enough for everybody.
FEW = (64, 257)
BY_LENGTH = [
    pytest.param(end, "length", marks=() if end in FEW else (pytest.mark.slow,)) for end in ENDS
]


@pytest.mark.parametrize(("end", "how"), [*BY_STOP, *BY_LENGTH])
def test_the_next_turn_has_the_whole_answer_and_the_bits_of_a_cold_run(
    model: ReferenceV4, ledger: ByteLedger, end: int, how: str
) -> None:
    cold = Watched(model, ledger, overlap=False, reuse=False)
    rig = Watched(model, ledger, overlap=True, reuse=True)
    company = rig.rig.send(prompt(20, 99), 60)
    said = [0, 0]
    text: list[int] = []
    for seed in range(20):
        text = prompt(end - 2, 100 * end + seed)
        said = cold.ask(text, 2)
        if said[0] != said[1]:
            break

    if how == "stop":
        assert rig.ask(text, 40, stop=(said[1],)) == said
    else:
        assert rig.ask(text, 2) == said
    assert len(rig.rig.tokens(company)) == 60

    # The last token was fed in the step that was in flight when it was known to be the last.
    history = [*text, *said]
    for tail in (prompt(TAIL, end + 1), prompt(TAIL, end + 2)):
        expected, expected_values, _ = cold.values([*history, *tail], 6)
        tokens, values, cached = rig.values([*history, *tail], 6)
        assert cached == end
        assert tokens == expected
        assert values == expected_values
    for kept in (1, 2):
        other = [*history[:-kept], *prompt(TAIL, end + 3)]
        assert rig.values(other, 4)[:2] == cold.values(other, 4)[:2]
    rig.rig.assert_conserved()


@pytest.mark.parametrize("chunk", [300, 1000])
def test_whoever_starts_at_a_waypoint_has_the_bits_of_a_cold_run(
    model: ReferenceV4, ledger: ByteLedger, chunk: int
) -> None:
    cold = Watched(model, ledger, overlap=False, reuse=False)
    sizes = PoolSizes(full_pages=24, swa_pages=160, states=48)
    policy = ResumePolicy(waypoint_tokens=256)
    rig = Watched(model, ledger, overlap=True, reuse=True, sizes=sizes, chunk=chunk, resume=policy)
    shared = prompt(540, 1)
    rig.rig.send([*shared, *prompt(100, 2)], 30)
    rig.rig.scheduler.turn()
    rig.rig.scheduler.turn()

    text = [*shared, *prompt(20, 3)]
    tokens, values, cached = rig.values(text, 6)
    assert cached == 512
    assert (tokens, values) == cold.values(text, 6)[:2]
    rig.rig.assert_conserved()


def test_rows_that_come_and_go_get_the_tokens_that_they_get_in_turn(
    model: ReferenceV4, ledger: ByteLedger
) -> None:
    said: list[list[list[int]]] = []
    for overlap in (False, True):
        watched = Watched(model, ledger, overlap=overlap, reuse=True)
        requests: list[int] = []
        for k in range(9):
            text = [*prompt(150, 5)[: 30 * (k % 4) + 7], *prompt(3 + k, 50 + k)]
            stop = () if k % 3 else (5, 17, 33, 60, 71, 88)
            requests.append(watched.rig.send(text, 12 + k, stop=stop))
        watched.run()
        said.append([watched.rig.tokens(request) for request in requests])
        watched.rig.assert_conserved()

    assert said[0] == said[1]
    assert min(map(len, said[0])) < 12
