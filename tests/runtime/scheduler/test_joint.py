"""One executor where several are expected."""

from mem_cache.spec import PoolSizes
from runtime.executor.interface import JointExecutor
from runtime.scheduler.joint import SoloExecutor
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.token_runner import TokenRunner

SIZES = PoolSizes(full_pages=20, swa_pages=20, states=10)


def test_a_step_of_one_replica_is_launched_on_its_executor() -> None:
    rig = Rig(SIZES)
    rig.send([1, 2, 3], 1)
    rig.run()
    runner = TokenRunner(SMALL, SIZES)
    executor: JointExecutor = SoloExecutor(runner)

    assert executor.launch([None]) == [None]
    [handle] = executor.launch([rig.plans[0].plan])

    assert handle is runner.open_steps[0]
    assert executor.replicas == [runner]
