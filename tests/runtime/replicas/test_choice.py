"""Where requests go: to their prefix, unless the queue there costs more than the match saves."""

import random

import pytest

from runtime.replicas.choice import Candidate, ChoiceCosts, Intake, choose

PLAIN = ChoiceCosts(leave_share=0.0, row_tokens=1)
STAYING = ChoiceCosts(leave_share=1.0, leave_tokens=4000, row_tokens=1)


def replica(name: str, matched: int = 0, waiting: int = 0, running: int = 0) -> Candidate:
    return Candidate(name, matched, waiting, running)


def chosen(*candidates: Candidate, prompt: int = 10_000, costs: ChoiceCosts = PLAIN) -> str:
    return choose(candidates, prompt, costs=costs).replica


def test_a_request_goes_where_its_prefix_is() -> None:
    assert chosen(replica("a"), replica("b", 6000), replica("c", 2000)) == "b"
    assert choose([replica("a"), replica("b", 256)], 300).replica == "b"


def test_a_queue_outweighs_a_match_by_the_tokens_that_it_has_more() -> None:
    assert chosen(replica("a", 6000, waiting=6000), replica("b")) == "a"
    assert chosen(replica("a", 6000, waiting=6001), replica("b")) == "b"
    assert chosen(replica("a", 6000, waiting=6500), replica("b", 0, waiting=1000)) == "a"


def test_a_match_is_worth_the_prompt_at_most() -> None:
    assert chosen(replica("a", 5000, waiting=101), replica("b"), prompt=100) == "b"
    assert chosen(replica("a", 5000), replica("b", 100), prompt=100) == "a"


def test_the_longest_match_is_left_only_for_more_than_the_costs_allow() -> None:
    """A match of half of the prompt for half as much again, one of a tenth for a tenth more."""
    for matched, allowed in ((1000, 100), (5000, 2500), (9000, 4000)):
        edge = matched + allowed
        assert chosen(replica("a"), replica("b", matched, edge), costs=STAYING) == "b"
        assert chosen(replica("a"), replica("b", matched, edge + 1), costs=STAYING) == "a"


def test_a_conversation_is_not_moved_for_less_than_the_least() -> None:
    costs = ChoiceCosts(leave_share=0.0, leave_least=300, row_tokens=1)
    assert chosen(replica("a"), replica("b", 50, waiting=350), costs=costs) == "b"
    assert chosen(replica("a"), replica("b", 50, waiting=351), costs=costs) == "a"
    assert chosen(replica("a"), replica("b", waiting=1), costs=costs) == "a"


def test_what_both_have_does_not_count_as_a_reason_to_stay() -> None:
    shared = replica("a", 8000, waiting=101), replica("b", 7900, waiting=0)
    assert chosen(*shared, costs=STAYING) == "a"
    assert chosen(replica("a", 8000, waiting=201), shared[1], costs=STAYING) == "b"
    assert chosen(replica("a", 8000, waiting=1), replica("b", 8000), costs=STAYING) == "b"


def test_equal_ones_are_decided_by_load_and_then_by_their_order() -> None:
    assert chosen(replica("a", waiting=5), replica("b", waiting=3), replica("c", waiting=4)) == "b"
    assert chosen(replica("a", running=2), replica("b", running=1)) == "b"
    assert chosen(replica("b"), replica("a"), replica("c")) == "b"
    # Equal in cost: the one that begins earlier.
    assert chosen(replica("a", 100, waiting=100), replica("b")) == "a"
    assert choose([replica("a", 100, running=1), replica("b", 100)], 100).replica == "b"


def test_idle_replicas_share_new_prompts_by_what_they_computed() -> None:
    """Also where all have the short prefix that all prompts share."""
    intake = Intake(memory_tokens=1e6)
    for _ in range(300):
        found = [Candidate(name, 256, 0, 0, intake.of(name)) for name in "abc"]
        intake.note(choose(found, 4000).replica, 3744)
    counts = [intake.of(name) for name in "abc"]
    assert max(counts) - min(counts) <= 3744

    intake.forget("b")
    assert intake.of("b") == 0
    found = [Candidate(name, 256, 0, 0, intake.of(name)) for name in "abc"]
    assert choose(found, 4000).replica == "b"
    # A match outweighs it.
    assert choose([found[1], Candidate("d", 512, 0, 0, 1e9)], 4000).replica == "d"


def test_what_was_computed_long_ago_is_forgotten() -> None:
    intake = Intake(memory_tokens=100_000)
    intake.note("a", 1000)
    for _ in range(100):
        intake.note("b", 5000)

    assert intake.of("a") < 10 < intake.of("b") < 105_000


def test_a_hot_prefix_spreads_over_as_many_replicas_as_its_load_needs() -> None:
    """Prompts of one prefix that come faster than one replica computes what is new in them."""
    waiting, cached = dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 0)
    sent = dict.fromkeys("abcd", 0)
    for _ in range(400):
        found = [replica(name, cached[name], waiting[name]) for name in "abcd"]
        name = choose(found, 5000, costs=STAYING).replica
        waiting[name] += 5000 - cached[name]
        cached[name] = 4000
        sent[name] += 1
        waiting = {key: max(0, tokens - 400) for key, tokens in waiting.items()}

    # 1,000 new tokens a request, 400 computed by each replica meanwhile: three are needed.
    assert sum(count >= 80 for count in sent.values()) >= 3
    assert max(waiting.values()) < 12_000


@pytest.mark.parametrize("costs", [PLAIN, STAYING, ChoiceCosts()])
def test_no_request_waits_longer_for_its_prefix_than_the_costs_say(costs: ChoiceCosts) -> None:
    draw = random.Random(7)
    for _ in range(2000):
        prompt = draw.randrange(20_000)
        found = [
            replica(str(k), draw.randrange(20_000), draw.choice((0, draw.randrange(40_000))))
            for k in range(draw.randrange(1, 9))
        ]
        ends = {
            one.replica: one.waiting_tokens + prompt - min(one.matched_tokens, prompt)
            for one in found
        }
        late = ends[choose(found, prompt, costs=costs).replica] - min(ends.values())
        assert 0 <= late <= min(costs.leave_tokens, costs.leave_share * prompt)


def test_without_replicas_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="no replica"):
        choose([], 100)
