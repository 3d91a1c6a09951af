"""The text of a state as it grows, for whoever reads along."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future


class TextLog:
    """Pieces of text in order, each with the variable it belongs to, if any.

    Written in the event loop, read anywhere. `news` is done as soon as there is more than when
    it was asked for.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[str | None, str]] = []
        self.news: Future[None] = Future()
        self._lock = threading.Lock()

    def add(self, name: str | None, text: str) -> None:
        """Append text that is not empty."""
        if text:
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
        while self._seen < len(self._log.pieces):
            name, text = self._log.pieces[self._seen]
            self._seen += 1
            if self._name is None or name == self._name:
                yield text
