"""Copies that are due when a step copies prefixes of other replicas: they are made before those."""

from mem_cache.spec import PoolSizes
from tests.runtime.scheduler.test_loop import prompt_of
from tests.runtime.scheduler.test_prefix_copies import AMPLE, HISTORY, Spread
from tests.testing.token_exchange import pairs_of
from tests.testing.token_runner import expected_output


def test_copies_that_are_due_are_made_before_all_those_of_a_step(either_way: bool) -> None:
    """The giver's own row starts in the turn in which two prefixes are copied from it."""
    rig = Spread(AMPLE, overlap=either_way)
    other = prompt_of(5, 100)
    for text in (HISTORY, other):
        rig.ask_at(0, text)
    asked = [(0, HISTORY), (1, HISTORY), (1, other)]
    requests = [rig.send_to(place, [*text, 1], 3) for place, text in asked]
    rig.run()

    assert [len(exchange.transfers) for exchange in rig.executor.exchanges] == [2]
    for request, (_, text) in zip(requests, asked, strict=True):
        assert rig.tokens(request) == expected_output([*text, 1], 3, 50)
    rig.assert_conserved()


def test_a_copy_that_is_due_does_not_reach_a_state_that_has_another_owner_by_now(
    either_way: bool,
) -> None:
    """An answer's end is given up for a prefix before the copy of its state was made."""
    sizes = PoolSizes(full_pages=200, swa_pages=200, states=5, live_states=4)
    rig = Spread(sizes, overlap=either_way)
    prompt = [*HISTORY, *rig.ask_at(0, HISTORY), 1]
    ended = rig.send_to(1, prompt_of(5, 30), 3)
    rig.turn_until(lambda: len(rig.tokens(ended)) == 3)
    assert rig.replicas[1].residency._copies.states
    request = rig.send_to(1, prompt, 3)
    rig.run()

    assert rig.tokens(request) == expected_output(prompt, 3, 50)
    [copied] = rig.transfers
    assert pairs_of(rig.executor.exchanges[0].early[1].states, 3)[1] == pairs_of(copied.states)[1]
    rig.assert_conserved()
