"""The text of a state as it grows, for whoever reads along."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any


class TextLog:
    """Pieces of text in order, each with the variable it belongs to, if any.

    Written in the event loop, read anywhere. `news` is done as soon as there is more than when
    it was asked for.

    facts  what the backend told with a piece, by its index
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[str | None, str]] = []
        self.facts: dict[int, Any] = {}
        self.news: Future[None] = Future()
        self._lock = threading.Lock()

    def add(self, name: str | None, text: str, facts: Any = None) -> None:
        """Append text that is not empty, with what the backend told with it, if anything."""
        if text:
            if facts:
                self.facts[len(self.pieces)] = facts
            self.pieces.append((name, text))
            self.wake()

    def wake(self) -> None:
        """Let every reader look again."""
        with self._lock:
            news, self.news = self.news, Future()
        news.set_result(None)

    def text(self, start: int = 0) -> str:
        """Return the text from piece `start` on."""
        return "".join(text for _, text in self.pieces[start:])

    def follow(self, name: str | None) -> "Follower":
        """Return a reader of one variable's text, or of all text for None."""
        return Follower(self, name)


class Follower:
    """One reader's place in a log."""

    def __init__(self, log: TextLog, name: str | None) -> None:
        self._log = log
        self._name = name
        self._seen = 0

    def take(self) -> Iterator[str]:
        """Yield what is new."""
        for text, _ in self.take_facts():
            yield text

    def take_facts(self) -> Iterator[tuple[str, Any]]:
        """Yield what is new, each piece with what the backend told with it; None: nothing."""
        while self._seen < len(self._log.pieces):
            name, text = self._log.pieces[self._seen]
            facts = self._log.facts.get(self._seen)
            self._seen += 1
            if self._name is None or name == self._name:
                yield text, facts
