"""The perfect cache finds the longest prefix of everything it was ever given."""

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.serving.perfect_cache import PerfectCache

SEQUENCES = st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), min_size=1, max_size=6))


def common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix, token by token."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


@given(SEQUENCES)
def test_a_hit_is_the_longest_common_prefix_with_any_earlier_sequence(
    sequences: list[list[int]],
) -> None:
    cache = PerfectCache()
    for k, tokens in enumerate(sequences):
        longest = max((common(tokens, other) for other in sequences[:k]), default=0)

        assert cache.hit(tokens) == min(longest, len(tokens) - 1)
        cache.add(tokens)


def test_a_repeated_prompt_leaves_its_last_token() -> None:
    cache = PerfectCache()
    cache.add([1, 2, 3])

    assert cache.hit([1, 2, 3]) == 2
    assert cache.hit([1, 2, 3, 4]) == 3
