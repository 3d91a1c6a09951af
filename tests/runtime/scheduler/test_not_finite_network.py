"""One forward pass whose numbers are not finite, on networks: nobody goes on from what it left."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

from layers.models.contract import Network
from runtime.wire.step import NOT_FINITE_REASON
from tests.runtime.scheduler.test_families import (
    FAMILIES,
    Family,
    cold,
    conversations,
)
from tests.testing.cpu_runner import network_runner
from tests.testing.scheduler_rig import Rig

NEW, PROMPTS = 5, 6


class Faulty:
    """A runner's network, one of whose steps reads an embedding that is not finite.

    steps  so far
    at     the step that does, counted from 1; 0: none
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        [self._embedding, *_] = [
            weight for name, weight in network.named_weights() if "embed" in name
        ]
        self.steps = self.at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def prefill(self, *arguments: Any, **named: Any) -> Any:
        """Run a step; see `Network`."""
        self.steps += 1
        with self._fault() if self.steps == self.at else torch.inference_mode():
            return self._network.prefill(*arguments, **named)

    @contextmanager
    def _fault(self) -> Iterator[None]:
        weight = self._embedding
        assert isinstance(weight, torch.Tensor)
        kept = weight.clone()
        try:
            with torch.inference_mode():
                weight.fill_(torch.nan)
            yield
        finally:
            with torch.inference_mode():
                weight.copy_(kept)


def faulty_rig(family: Family, *, overlap: bool) -> tuple[Rig, Faulty]:
    network = Faulty(family.make())
    sizes = family.ample
    runner = network_runner(
        network,  # pyright: ignore[reportArgumentType]
        network.pools(sizes),
        vocab=family.vocab,
        pages=sizes.full_pages,
    )
    cache = network.cache
    rig = Rig(
        sizes,
        spec=cache.tree,
        replay=cache.replay_tokens,
        chunk=family.chunk,
        runner=runner,
        overlap=overlap,
    )
    return rig, network


def asked(rig: Rig, prompts: list[list[int]]) -> list[int]:
    """Ask for all of them, some together; return the requests."""
    sent: list[int] = []
    for nth, prompt in enumerate(prompts):
        sent.append(rig.send(prompt, NEW, ignore_eos=True))
        if nth % 3 != 1:
            rig.run()
    rig.run()
    return sent


@cache
def expected_of(name: str) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts for a family, and what follows them where no step fails; made once."""
    prompts = conversations(random.Random(3), FAMILIES[name], PROMPTS)
    return prompts, cold(FAMILIES[name], prompts, NEW)


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_of_nan_is_forgotten(name: str, overlap: bool, every: int) -> None:
    family = FAMILIES[name]
    prompts, expected = expected_of(name)
    rig, network = faulty_rig(family, overlap=overlap)
    assert [rig.tokens(one) for one in asked(rig, prompts)] == expected
    steps, failed = network.steps, 0

    for at in range(1 + overlap, steps, every):
        rig, network = faulty_rig(family, overlap=overlap)
        network.at = at

        for one, want in zip(asked(rig, prompts), expected, strict=True):
            last = rig.outputs(one)[-1]
            if last.finish == "error":
                assert last.error == NOT_FINITE_REASON
                failed += 1
            else:
                assert rig.tokens(one) == want
        # Where all that it fed were ends of answers, it failed nobody.
        counters = rig.replica.stats.counters
        assert counters["not_finite_requests"] + counters["distrusted_pages"] >= 1, at
        again = [rig.tokens(one) for one in asked(rig, prompts)]
        assert again == expected, at
        rig.assert_conserved()
    assert failed
