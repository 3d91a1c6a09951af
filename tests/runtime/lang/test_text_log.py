"""Tests of runtime.lang.text_log."""

from runtime.lang.text_log import TextLog


def test_a_follower_sees_each_piece_once() -> None:
    log = TextLog()
    everything, only_x = log.follow(None), log.follow("x")
    log.add(None, "a")
    log.add("x", "b")

    assert (list(everything.take()), list(only_x.take())) == (["a", "b"], ["b"])
    log.add("x", "c")
    assert (list(everything.take()), list(only_x.take())) == (["c"], ["c"])


def test_news_is_told_once_for_everything_since() -> None:
    log = TextLog()
    before = log.news
    log.add(None, "")
    assert not before.done()

    log.add(None, "a")

    assert before.done()
    assert not log.news.done()
    assert log.text() == "a"


def test_a_piece_is_read_with_what_was_told_of_it() -> None:
    log = TextLog()
    log.add(None, "a")
    log.add("x", "b", {"k": 1})
    log.add("x", "", {"k": 2})

    assert list(log.follow(None).take_facts()) == [("a", None), ("b", {"k": 1})]
