"""The automaton against the obvious search, and what it holds back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tokenizer.stop_strings import StopMatch, StopMatcher, StopTable

letters = st.text(alphabet="aab", max_size=40)
stops_of = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Return start and stop string of the first to be complete, of several the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), longest
    return None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, StopMatch | None]:
    """Return the text given out in all, and the match."""
    out = ""
    for piece in pieces:
        news = matcher.push(piece)
        if isinstance(news, StopMatch):
            return out + news.text, news
        out += news
    return out + matcher.finish(), None


def cut(text: str, sizes: list[int]) -> list[str]:
    """Return `text` in pieces of the given sizes, the rest last."""
    pieces: list[str] = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@settings(max_examples=200, deadline=None)
@given(letters, stops_of, st.lists(st.integers(0, 6), max_size=20))
def test_matches_the_naive_search_in_any_pieces(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    matcher = StopMatcher(StopTable.build(tuple(stops)))

    out, match = run(matcher, cut(text, sizes))

    expected = naive(text, tuple(stops))
    if expected is None:
        assert match is None
        assert out == text
    else:
        assert match is not None
        assert (len(out), match.stop) == expected
        assert text.startswith(out + match.stop)


@settings(max_examples=60, deadline=None)
@given(letters, stops_of)
def test_holds_back_exactly_what_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopTable.build(tuple(stops)))
    out = ""
    for end, character in enumerate(text, start=1):
        news = matcher.push(character)
        if isinstance(news, StopMatch):
            break
        out += news
        held = text[len(out) : end]
        beginnings = {stop[:k] for stop in stops for k in range(1, len(stop))}
        longest = max((b for b in beginnings if text[:end].endswith(b)), key=len, default="")
        assert held == longest


def test_a_string_over_three_pieces_is_found() -> None:
    out, match = run(StopMatcher(StopTable.build(("</end>",))), ["go <", "/en", "d> on"])

    assert out == "go "
    assert match == StopMatch("", "</end> on", "</end>")


def test_what_looked_like_a_beginning_is_given_out_when_it_is_none() -> None:
    matcher = StopMatcher(StopTable.build(("\n\nUser:",)))

    assert matcher.push("Hello\n") == "Hello"
    assert matcher.push("\nUse") == ""
    assert matcher.push("ful") == "\n\nUseful"
    assert matcher.finish() == ""


def test_the_end_of_the_text_gives_out_what_was_held() -> None:
    matcher = StopMatcher(StopTable.build(("abc",)))

    assert matcher.push("xab") == "x"
    assert matcher.finish() == "ab"


def test_a_string_complete_while_unarmed_does_not_count() -> None:
    matcher = StopMatcher(StopTable.build(("ab",)))

    assert matcher.push("xab", armed=False) == "xab"
    assert matcher.push("a") == ""
    assert matcher.push("b") == StopMatch("", "ab", "ab")


def test_a_string_begun_unarmed_and_completed_armed_counts() -> None:
    matcher = StopMatcher(StopTable.build(("ab",)))

    assert matcher.push("xa", armed=False) == "x"
    assert matcher.push("b") == StopMatch("", "ab", "ab")


def test_a_long_text_of_near_misses_is_held_back_no_longer_than_a_stop_string() -> None:
    stop = "a" * 255 + "b"
    matcher = StopMatcher(StopTable.build((stop,)))

    out = ""
    for _ in range(1000):
        news = matcher.push("aaaa")
        assert isinstance(news, str)
        out += news

    assert len(out) == 4000 - 255
