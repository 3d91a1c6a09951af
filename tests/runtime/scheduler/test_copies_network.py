"""On real networks that two ranks share: a copied prefix gives the bits of a cold run."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from layers.parallel.shares import Shares
from mem_cache.spec import PoolSizes
from runtime.executor.interface import StepHandle
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.model_runner import CpuModelRunner
from runtime.messages import Logprobs, TokenLogprobs
from runtime.scheduler.settings import CopyLimits
from runtime.wire.step import Exchange, StepPlan
from tests.runtime.scheduler.test_prefix_copies import Spread
from tests.testing.cpu_runner import cpu_runner, tiny_network
from tests.testing.thread_ranks import Meeting, ThreadRanks
from tests.testing.tiny_model import prompt

WORLD, LINES = 2, 4
HISTORY, NEXT = prompt(300, 5), prompt(9, 6)


class ThreadExecutor:
    """Ranks with networks and pools of their own, a thread each; a `JointExecutor`."""

    def __init__(self, threads: ThreadPoolExecutor, draft_tokens: int) -> None:
        meeting = Meeting(WORLD)
        ranks = [ThreadRanks(Shares(rank, WORLD, "data"), meeting) for rank in range(WORLD)]
        networks = [tiny_network(draft_tokens=draft_tokens, ranks=rank) for rank in ranks]
        cache = networks[0].cache
        live = LINES if cache.packs_states else 0
        self.spec = cache.tree
        self.sizes = PoolSizes(full_pages=16, swa_pages=60, states=20 + live, live_states=live)
        pools = [network.pools(self.sizes) for network in networks]
        for tensor in (tensor for one in pools for tensor in one.tensors().values()):
            tensor.view(torch.uint8).fill_(0xFF)
        self.replicas: Sequence[CpuModelRunner] = [
            cpu_runner(network, one, lines=LINES, ranks=rank)
            for network, one, rank in zip(networks, pools, ranks, strict=True)
        ]
        self.exchanges: list[Exchange] = []
        self._threads = threads

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start a step of all ranks."""
        self.exchanges += [] if exchange is None else [exchange]
        tokens = JointTokens.of(plans)

        def part(rank: int) -> StepHandle | None:
            return self.replicas[rank].launch_part(plans[rank], tokens, exchange)

        return list(self._threads.map(part, range(WORLD)))


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.slow), 3], ids=["one form", "two forms"])
def executor(request: pytest.FixtureRequest) -> Iterator[ThreadExecutor]:
    """Ranks with random weights; with draft tokens resume points keep packed states."""
    with ThreadPoolExecutor(WORLD) as threads:
        yield ThreadExecutor(threads, request.param)


class Asking:
    """A scheduler of these ranks."""

    def __init__(self, executor: ThreadExecutor, **more: Any) -> None:
        self.rig = Spread(
            executor.sizes,
            WORLD,
            spec=executor.spec,
            rows=LINES,
            chunk=100,
            runners=executor.replicas,
            **more,
        )
        self.rig.scheduler._executor = executor

    def ask(
        self, place: int, text: list[int], namespace: str = ""
    ) -> tuple[int, list[int], list[TokenLogprobs]]:
        """Serve a request in a replica; return its cached tokens, its tokens, and all they tell."""
        wanted = Logprobs(start=len(text), top=3)
        request = self.rig.send(text, 6, namespace=namespace, logprobs=wanted, ignore_eos=True)
        self.rig.wanted[request] = place
        self.rig.turn_until(lambda: self.rig.outputs(request)[-1:] != [] and self._ended(request))
        told = [item.logprobs for item in self.rig.outputs(request) if item.logprobs is not None]
        return self.rig.cached(request), self.rig.tokens(request), told

    def _ended(self, request: int) -> bool:
        return self.rig.outputs(request)[-1].finish is not None


def test_a_copy_gives_the_bits_of_a_cold_run_and_of_a_local_hit(executor: ThreadExecutor) -> None:
    """Other rows decode in the giver meanwhile."""
    asking = Asking(executor)
    _, reply, _ = asking.ask(0, HISTORY)
    turn = [*HISTORY, *reply, *NEXT]
    asking.rig.send_to(0, prompt(40, 7), 60)

    cold = asking.ask(1, turn, "nothing is known here")
    assert not executor.exchanges
    copied = asking.ask(1, turn)
    [exchange] = executor.exchanges
    local = asking.ask(0, turn)

    assert [cached for cached, _, _ in (cold, copied, local)] == [0, 305, 305]
    assert copied[1:] == cold[1:]
    assert local[1:] == cold[1:]
    assert len(cold[2]) == 6
    [one] = exchange.transfers
    assert all((one.pages, one.windows, one.states))
    asking.rig.run()
    asking.rig.assert_nothing_held()


def test_a_conversation_goes_back_and_forth_in_pieces(executor: ThreadExecutor) -> None:
    limits = CopyLimits(page_bytes=10, swa_page_bytes=1, state_bytes=1, step_bytes=10)
    asking, text = Asking(executor, copies=limits), HISTORY
    for place in (0, 1, 0, 1):
        cold = asking.ask(1 - place, text, f"cold {len(text)}")
        found = asking.ask(place, text)
        assert found[1:] == cold[1:]
        text = [*text, *found[1], *prompt(60, place)]

    assert len(executor.exchanges) == 4
    assert asking.rig.counted == (305 + 66 + 66, 0)
    asking.rig.assert_nothing_held()
    asking.rig.assert_conserved()
