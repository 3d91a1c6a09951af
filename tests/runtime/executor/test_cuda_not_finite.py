"""Steps whose numbers are not finite, on a CUDA device: nobody goes on from what they left."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.cuda_runner import CudaModelRunner, CudaStep
from runtime.wire.step import NOT_FINITE_REASON, KeptResult, SampleKept, StepPlan
from tests.testing.fused_rig import FusedRig
from tests.testing.scheduler_rig import Rig

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

NEW = 6
# So few resume points that some prompts are computed again from pages alone.
FEW = PoolSizes(full_pages=24, swa_pages=60, states=6)


class Faulty:
    """A runner, one of whose steps reads an embedding that is not finite.

    steps  so far
    at     the step that does, counted from 1; 0: none
    """

    def __init__(self, runner: CudaModelRunner, weight: torch.Tensor, at: int) -> None:
        self.steps, self.at = 0, at
        self._runner, self._weight = runner, weight

    def launch(self, plan: StepPlan) -> CudaStep:
        """Launch the plan; see `Executor`."""
        self.steps += 1
        with self._fault() if self.steps == self.at else torch.inference_mode():
            return self._runner.launch(plan)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines; see `Executor`."""
        return self._runner.sample_kept(command)

    @contextmanager
    def _fault(self) -> Iterator[None]:
        """In the order of the stream: graphs that are replayed inside read it, too."""
        kept = self._weight.clone()
        with torch.inference_mode():
            self._weight.fill_(torch.nan)
            yield
            self._weight.copy_(kept)


@pytest.fixture(scope="module")
def strict(short_folder: Path) -> FusedRig:
    return FusedRig(short_folder, deterministic=True)


def conversations() -> list[list[int]]:
    """Return prompts that begin alike: next turns, branches, and one that is asked again."""
    draw = random.Random(8)
    said = draw.choices(range(2, 500), k=900)
    lengths = [(900, 5), (300, 80), (900, 5), (640, 200), (0, 400), (257, 3), (900, 260)]
    return [[*said[:shared], *draw.choices(range(2, 500), k=own)] for shared, own in lengths]


def ask(rig: Rig) -> list[int]:
    """Ask all, some together; return the requests."""
    sent: list[int] = []
    for nth, prompt in enumerate(conversations()):
        sent.append(rig.send(prompt, NEW, ignore_eos=True))
        if nth % 3 != 1:
            rig.run()
    rig.run()
    return sent


def faulty_rig(strict: FusedRig, at: int) -> tuple[Rig, Faulty]:
    [weight, *_] = [each for name, each in strict.network.named_weights() if "embed" in name]
    assert isinstance(weight, torch.Tensor)
    runner = Faulty(strict.runner(4), weight, at)
    return Rig(FEW, spec=TreeSpec(), rows=4, chunk=256, runner=runner, overlap=True), runner


def test_a_step_of_nan_is_forgotten_whatever_it_runs(strict: FusedRig) -> None:
    rig, runner = faulty_rig(strict, 0)
    expected = [rig.tokens(one) for one in ask(rig)]
    rows = [len(plan.plan.rows.line) for plan in rig.plans]
    assert max(rows) > 4  # several rows, int32, in a step
    failed = 0
    for at in range(2, runner.steps, 5):
        rig, _ = faulty_rig(strict, at)

        for one, want in zip(ask(rig), expected, strict=True):
            last = rig.outputs(one)[-1]
            failed += last.finish == "error"
            told = NOT_FINITE_REASON if last.finish == "error" else rig.tokens(one)
            assert told in (last.error, want), at
        counters = rig.replica.stats.counters
        assert counters["not_finite_requests"] + counters["distrusted_pages"] >= 1, at
        assert [rig.tokens(one) for one in ask(rig)] == expected, at
        rig.assert_conserved()
    assert failed
