"""Steps of ranks with rows of their own over fused ops, on the CPU: graphs, padding, idle ranks."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch

from layers.models.contract import Settings
from layers.models.deepseek_v4.config import load_config
from layers.weights.loading import load_weights
from mem_cache.spec import TreeSpec
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.lines import Lines
from runtime.executor.sampler import Sampler
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import Copies, Exchange, StepPlan, StepResult, UnitTransfer
from tests.testing.direct import CPU
from tests.testing.fused_rig import SHORT, QuantisedModel, rerun
from tests.testing.plans import PlannedRow, Plans, entry_tokens, line_sampling
from tests.testing.stand_in.folder import write_stand_in
from tests.testing.thread_ranks import ThreadRanks, in_ranks

pytestmark = pytest.mark.usefixtures("dense_weights_once")
LINES, PAGES = 4, 2
Script = Sequence[StepPlan | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose experts two ranks share."""
    made = tmp_path_factory.mktemp("joint")
    return write_stand_in(made, **SHORT, moe_intermediate_size=256)


@pytest.fixture(scope="module")
def tree(folder: Path) -> TreeSpec:
    """How its cache is built."""
    return QuantisedModel(load_config(folder)).build(CPU, Settings(experts="fp8")).cache.tree


def script(plans: Plans, lengths: Sequence[int], new: int, *, seed: int) -> list[StepPlan]:
    """Return steps that prefill rows of these lengths at once, then decode them all."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(2, 500, size=length).tolist() for length in lengths]
    rows = [PlannedRow(line, 0, ids) for line, ids in enumerate(prompts)]
    joins = {line: line_sampling() for line in range(len(rows))}
    steps = [plans.plan(*rows, joins=joins)]
    for step in range(new):
        ids = draw.integers(2, 500, size=(len(rows), 1)).tolist()
        ends = [length + step for length in lengths]
        steps.append(plans.plan(*map(PlannedRow, range(len(rows)), ends, ids)))
    return steps


def runner_of(folder: Path, ranks: ThreadRanks, graphs: Sequence[int]) -> CudaModelRunner:
    """Return a runner of this rank on poisoned pools."""
    model = QuantisedModel(load_config(folder))
    network = model.build(CPU, Settings(experts="fp8", deterministic=True), ranks)
    load_weights(network, folder, progress=False)
    plans = Plans(network.cache.tree, lines=LINES, pages=PAGES)
    pools = network.pools(plans.sizes)
    for tensor in pools.tensors().values():
        tensor.view(torch.uint8).fill_(0xFF)
    width = network.cache.tree.window_pages
    buffers = DecodeBuffers(LINES, pages=PAGES, window_pages=width, device=CPU)
    lines = Lines(plans.tables, Sampler(model.config.vocab_size, CPU), buffers.last[:LINES])
    runner = CudaModelRunner(network, pools, lines, buffers, ranks)
    runner.capture(tuple(graphs), rerun)
    return runner


def run(
    folder: Path, scripts: Sequence[Script], *, graphs: Sequence[int] = ()
) -> list[list[StepResult]]:
    """Return the results of each rank; a rank whose script has ended is idle."""
    steps = [*zip_longest(*scripts)]

    def one(ranks: ThreadRanks) -> list[StepResult]:
        runner = runner_of(folder, ranks, graphs)
        found: list[StepResult] = []
        for sections in steps:
            step = runner.launch_part(sections[ranks.shares.rank], JointTokens.of(sections))
            if step is not None:
                found.append(step.result())
        return found

    return list(in_ranks(len(scripts), one, attention="data"))


def tokens(results: Sequence[StepResult]) -> list[list[list[int]]]:
    return [entry_tokens(result) for result in results]


def test_a_rank_has_the_same_tokens_with_others_in_graphs_and_alone(
    folder: Path, tree: TreeSpec
) -> None:
    """Graphs have the size of the rank with most rows; ranks are idle, or have changes alone."""
    plans = [Plans(tree, lines=LINES, pages=PAGES) for _ in range(2)]
    many = script(plans[0], (150, 3, 20), new=3, seed=1)
    few = [*script(plans[1], (40,), new=5, seed=2), plans[1].plan(left=[0])]

    both = run(folder, [many, few])
    graphs = run(folder, [many, few], graphs=(2, 4))
    alone = run(folder, [many, ()])

    assert [len(results) for results in both] == [len(many), len(few)]
    assert all(result.finite.count(1) == len(result.finite) for result in (*both[0], *both[1]))
    assert [tokens(results) for results in graphs] == [tokens(results) for results in both]
    assert tokens(alone[0]) == tokens(both[0])
    assert alone[1] == []


def test_units_are_exchanged_where_no_rank_computes(folder: Path) -> None:
    """Each rank copies a page of its own first, which is what it gives."""
    early = Copies(pages=packed([(1, 2)], INT32))
    there, back = packed([(2, 1)], INT32), packed([(2, 2)], INT32)
    transfers = [UnitTransfer(0, 1, pages=there), UnitTransfer(1, 0, pages=back)]

    def one(ranks: ThreadRanks) -> tuple[int, int]:
        runner, rank = runner_of(folder, ranks, ()), ranks.shares.rank
        pages = runner._pools.tensors()["c4"].view(torch.uint8)
        pages[:, 1] = 7 + rank
        exchange = Exchange(1, [early, early], transfers)
        assert runner.launch_part(None, JointTokens.of([None, None]), exchange) is None
        assert bool((pages[:, 1:3] == pages[:, 1:3, :1]).all())
        return int(pages[0, 1, 0]), int(pages[0, 2, 0])

    assert list(in_ranks(2, one, attention="data")) == [(7, 8), (7, 8)]
