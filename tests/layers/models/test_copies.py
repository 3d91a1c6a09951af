"""Copies of units in groups: made group by group, they are what they are one by one."""

from itertools import pairwise

import torch

from layers.models.copies import apart


def test_copies_in_groups_are_those_one_after_another() -> None:
    for drawn in torch.randint(6, (50, 12, 2)).tolist():
        pairs = [(source, destination) for source, destination in drawn]
        one_by_one, grouped = list(range(6)), list(range(6))
        for source, destination in pairs:
            one_by_one[destination] = one_by_one[source]

        groups = list(apart(pairs))

        for group in groups:
            before = list(grouped)
            for source, destination in group:
                grouped[destination] = before[source]
        assert grouped == one_by_one
        assert [pair for group in groups for pair in group] == pairs
        # No group could take the first copy of the next one.
        for group, after in pairwise(groups):
            source, destination = after[0]
            read, written = ({pair[i] for pair in group} for i in (0, 1))
            assert destination in read | written or source in written


def test_copies_go_together_unless_one_waits_for_another() -> None:
    assert [*apart([])] == []
    assert [*apart([(1, 2), (1, 3), (4, 5)])] == [[(1, 2), (1, 3), (4, 5)]]
    assert [*apart([(1, 2), (2, 3)])] == [[(1, 2)], [(2, 3)]]
    assert [*apart([(1, 2), (3, 2), (3, 4)])] == [[(1, 2)], [(3, 2), (3, 4)]]
    assert [*apart([(1, 2), (3, 1)])] == [[(1, 2)], [(3, 1)]]
