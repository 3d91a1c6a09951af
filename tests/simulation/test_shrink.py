"""Scripts that fail become short, and still fail in the same way."""

from tests.simulation.faults import planted
from tests.simulation.running import Outcome, live_script, live_seed
from tests.simulation.script import Arrive, Flush, Script, WorldSpec
from tests.simulation.shrink import Shrinker

FAULT = "end is told twice"


def test_a_life_with_a_planted_fault_shrinks_to_one_call() -> None:
    with planted(FAULT):
        failed = live_seed(0, 40)
        assert len(failed.script.events) > 10
        shrunk = Shrinker(failed).shrink()
        again = live_script(shrunk.script)

    assert [type(event) for event in shrunk.script.events] == [Arrive]
    assert type(again.fault) is type(failed.fault)
    assert live_script(shrunk.script).fault is None


def test_what_fails_only_together_is_kept_in_its_order() -> None:
    def run(script: Script) -> Outcome:
        keys = [event.key for event in script.events if isinstance(event, Arrive)]
        fault = AssertionError() if keys[:1] == [3] and keys[-1:] == [40] else None
        return Outcome(script, 0, fault)

    calls = [Arrive(at=float(key), key=key, prompt="abc", n=2, new=9) for key in range(3, 41)]
    script = Script(0, WorldSpec(), [Flush(at=0.0), *calls])

    shrunk = Shrinker(run(script), run=run).shrink().script

    assert shrunk.events == [
        Arrive(at=3.0, key=3, prompt="abc", new=0),
        Arrive(at=40.0, key=40, prompt="abc", new=0),
    ]


def test_no_more_scripts_are_tried_than_allowed() -> None:
    def run(script: Script) -> Outcome:
        return Outcome(script, 0, AssertionError() if len(script.events) > 90 else None)

    script = Script(0, WorldSpec(), [Flush(at=float(k)) for k in range(100)])
    shrinker = Shrinker(run(script), run=run, most_runs=7)

    assert 90 < len(shrinker.shrink().script.events) < 100 or shrinker.runs == 7
    assert shrinker.runs == 7
