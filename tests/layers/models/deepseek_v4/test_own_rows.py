"""Ranks with rows of their own: each computes for its rows what a rank alone computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.model import ReferenceV4
from layers.models.deepseek_v4.pools import KvPools
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.shares import Shares
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.weights.loading import fill_dummy
from layers.weights.part import Part
from runtime.executor.batch_builder import idle_batch
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import CPU, Chunk, Direct
from tests.testing.thread_ranks import ThreadRanks, in_ranks
from tests.testing.tiny_model import CONFIG, prompt

NEW = 4
_NO_MEETING: Any = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank computes: prompts, in chunks of so many tokens, and `NEW` tokens of each."""

    lengths: tuple[int, ...]
    chunk: int = 64


# Unequal numbers of rows, of tokens and of steps; ranks without work, too.
WORKS: dict[int, tuple[Work, ...]] = {
    2: (Work((150, 5)), Work((3,))),
    4: (Work((9,)), Work(()), Work((70, 131), 50), Work((1, 2, 4))),
}
Found = list[tuple[list[int], Tensor]]


class Meeting:
    """A rank's network: before each step it hears how many tokens the others have."""

    config = CONFIG

    def __init__(self, ranks: ThreadRanks) -> None:
        self._ranks, self._network = ranks, network_of(ranks)
        self._spec = Direct(self._network, "fp32").spec

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Forwarded:
        """Run a step of this rank's rows."""
        counts = self._counts(len(batch.input_ids))
        return self._network.prefill(batch, pools, counts=[max(1, n) for n in counts])

    def idle(self, pools: KvPools) -> bool:
        """Take part in a step of others; return whether there was one."""
        counts = self._counts(0)
        if any(counts):
            batch = idle_batch(self._spec.tree.window_pages)
            self._network.prefill(batch, pools, counts=[max(1, n) for n in counts])
        return any(counts)

    def _counts(self, own: int) -> list[int]:
        return torch.stack(self._ranks._all(torch.tensor(own))).tolist()


def network_of(ranks: Ranks) -> ReferenceV4:
    """Return a rank's network, with the same random weights in all worlds."""
    network = ReferenceV4(CONFIG, CPU, ranks=ranks)
    fill_dummy(network, 7)
    return network


def run(direct: Direct, work: Work, seed: int) -> Found:
    """Return the tokens and the logits of each prompt, all of which are decoded together."""
    direct.poison()
    rows = [
        direct.row([t % CONFIG.vocab_size for t in prompt(length, seed + length)])
        for length in work.lengths
    ]
    parts: list[list[Tensor]] = []
    for row in rows:
        end = len(row.tokens)
        parts.append([direct.prefill(row, chunk=work.chunk, logits=[end - 1])])
    for _ in range(NEW if rows else 0):
        for row, own in zip(rows, parts, strict=True):
            row.tokens.append(int(own[-1].argmax()))
        step, _ = direct.step([Chunk(row, row.done + 1, logits=[row.done]) for row in rows])
        for own, logits in zip(parts, step.split(1), strict=True):
            own.append(logits)
    return [(row.tokens, torch.cat(own)) for row, own in zip(rows, parts, strict=True)]


def together(works: Sequence[Work]) -> list[Found]:
    """Return what each rank finds while the others do their own work."""

    def one(ranks: ThreadRanks) -> Found:
        meeting = Meeting(ranks)
        direct = Direct(meeting, "fp32")
        rank = ranks.shares.rank
        found = run(direct, works[rank], seed=100 * rank)
        while meeting.idle(direct.pools):
            pass
        return found

    return list(in_ranks(len(works), one, attention="data"))


@pytest.mark.parametrize("world", WORKS)
def test_ranks_with_rows_of_their_own_compute_what_one_rank_computes(world: int) -> None:
    """Channels of an expert are summed in another order, and nothing else."""
    for rank, found in enumerate(together(WORKS[world])):
        alone = run(Direct(network_of(OneRank()), "fp32"), WORKS[world][rank], seed=100 * rank)

        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in alone]
        for (_, got), (_, want) in zip(found, alone, strict=True):
            assert_close(got, want, Bounds(atol=1e-4))


def test_what_other_ranks_compute_changes_no_bit() -> None:
    busy = together(WORKS[2])

    idle = together((WORKS[2][0], Work(())))

    for (tokens, got), (same, want) in zip(busy[0], idle[0], strict=True):
        assert tokens == same
        assert torch.equal(got, want)


def test_ranks_share_experts_and_nothing_else() -> None:
    network = ReferenceV4(CONFIG, CPU, ranks=ThreadRanks(Shares(1, 2, "data"), _NO_MEETING))

    for name, target in network.named_weights():
        assert isinstance(target, Part) == ("experts." in name), name
