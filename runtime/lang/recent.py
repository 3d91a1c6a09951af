"""Which beginnings each backend has computed lately, so that batches need not ask for them again.

A guess of the client's: another client may have evicted one. It is computed again then, by each
program that comes before the first one has computed it.
"""

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from runtime.errors import BadRequest
from runtime.lang.backend import Backend
from runtime.lang.prompt import Place, Prompt

FRESH_S = 60.0
MOST = 256


class Recent:
    """The beginnings that one backend has computed, by hash, each with the time of its last use."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._used: OrderedDict[int, float] = OrderedDict()

    def has(self, prompt: Prompt) -> bool:
        """Return whether a beginning was computed or used lately."""
        used = self._used.get(_key(prompt))
        return used is not None and self._now() - used < FRESH_S

    def note(self, prompt: Prompt) -> None:
        """Keep a beginning as computed."""
        key = _key(prompt)
        self._used[key] = self._now()
        self._used.move_to_end(key)
        while len(self._used) > MOST:
            self._used.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the cache was emptied."""
        self._used.clear()


_recent: weakref.WeakKeyDictionary[Backend, Recent] = weakref.WeakKeyDictionary()


def recent(backend: Backend) -> Recent:
    """Return what a backend has computed lately. Called in the event loop alone."""
    try:
        return _recent.setdefault(backend, Recent())
    except TypeError:  # a backend of the user's own that cannot be a key
        return Recent()


async def commit(backend: Backend, prefix: Prompt) -> None:
    """Compute a beginning, unless that was done lately."""
    kept = recent(backend)
    if not kept.has(prefix):
        await compute(backend, prefix)
    kept.note(prefix)


async def compute(backend: Backend, prefix: Prompt) -> None:
    """Compute a beginning; of a turn that the chat format cannot leave open what precedes it."""
    try:
        await backend.cache_prefix(prefix.with_stable_end())
    except BadRequest:
        if not prefix.unfinished:
            raise
        if len(prefix.turns) > 1:
            closed = replace(prefix, turns=prefix.turns[:-1], unfinished=False)
            await backend.cache_prefix(closed)


def note_points(backend: Backend, prompt: Prompt) -> None:
    """Keep the beginnings of a computed prompt behind which a server left a resume point.

    Those are its `shared` ones, and what precedes the first and the last turn of a user.
    """
    if not (prompt.shared or prompt.turns) or prompt.between:
        return
    kept = recent(backend)
    for place in prompt.shared:
        if place == Place(None, place.chars):
            kept.note(Prompt(pieces=(prompt.text[: place.chars],)))
    users = [k for k, turn in enumerate(prompt.turns) if turn.role == "user"]
    for first in {*users[:1], *users[-1:]} - {0}:
        kept.note(Prompt(turns=prompt.turns[:first], open=False))


def _key(prompt: Prompt) -> int:
    return hash((prompt.pieces, prompt.turns, prompt.between, prompt.open, prompt.unfinished))
