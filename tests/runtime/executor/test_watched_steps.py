"""Steps of the CUDA runner under `--check-every-step`; on the CPU where there is no device."""

import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.record_watch import RecordWatch
from tests.runtime.executor.test_cuda_runner import ask_twice, prompt
from tests.testing.fused_rig import FusedRig
from tests.testing.plans import PlannedRow, Plans, entry_tokens, line_sampling

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def watched(rig: FusedRig) -> CudaModelRunner:
    """Return a runner that finds what no step may write."""
    runner = rig.runner(4)
    runner._watch = RecordWatch(runner._pools.unit_views(), rig.tree)
    return runner


def test_a_record_that_no_step_wrote_is_found_before_it_is_read(exact: FusedRig) -> None:
    runner, plans = watched(exact), Plans(TreeSpec(), lines=2)
    row = PlannedRow(0, 0, prompt(20, 3))
    (token,) = entry_tokens(runner.run(plans.plan(row, joins={0: line_sampling()})))[0]
    runner.run(plans.plan(PlannedRow(0, 20, [token])))
    swa = runner._pools.unit_views().swa_pages[0].bytes
    # The window's first page, and a byte of its last layer.
    block, nth = divmod(1, swa.shape[2])
    swa[-1, block, nth, -1] ^= 1

    with pytest.raises(IntegrityError, match="SWA page 1 on the device"):
        runner.run(plans.plan(PlannedRow(0, 21, [token])))


def test_prompts_and_next_turns_write_only_what_is_theirs(exact: FusedRig) -> None:
    told = [tokens for each in ask_twice(watched(exact)) for tokens in each]

    assert [*map(len, told)] == [6] * 9
