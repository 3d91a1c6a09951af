"""The variables of one state: promises of values, what a fork inherits, and what a join gathers."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from runtime.lang.waiting import arrival, over


@dataclass(frozen=True, slots=True)
class Value:
    """What a variable holds, and the facts that the backend reported with it."""

    value: Any
    meta_info: Any = None


class Variables(dict[str, "Future[Value]"]):
    """The latest promise under each name."""

    def __init__(self) -> None:
        super().__init__()
        self._inherited: dict[str, Future[Value]] = {}
        self._gathered: dict[str, Future[Value]] = {}

    def fork(self) -> "Variables":
        """Return what a fork begins with."""
        fork = Variables()
        fork.update(self)
        fork._inherited, fork._gathered = dict(self), dict(self._gathered)
        return fork

    def is_inherited(self, name: str) -> bool:
        """Return whether a variable is still the one that this fork began with."""
        return name in self._inherited and self._inherited[name] is self[name]

    def gather(self, children: "Sequence[Variables]") -> "dict[str, list[Future[Value]]]":
        """Return the promises of each variable that a join of `children` defines, by its name.

        Such a variable was defined in a child since the fork. One that is defined here stays as it
        is, unless an earlier join has defined it.
        """
        sources: dict[str, list[Future[Value]]] = {}
        for child in children:
            for name, promise in list(child.items()):
                is_free = name not in self or self[name] is self._gathered.get(name)
                if is_free and not child.is_inherited(name):
                    sources.setdefault(name, []).append(promise)
        return sources

    def set_gathered(self, name: str, promise: "Future[Value]") -> None:
        """Define a variable as the result of a join."""
        self[name] = self._gathered[name] = promise


async def all_values(sources: "list[Future[Value]]", keep: object) -> Value:
    """Return the values as a list, and their facts as another. Raises the first failure."""
    values = [await arrival(source) for source in sources]
    del keep
    return Value([v.value for v in values], [v.meta_info for v in values])


async def all_over(promises: "Sequence[Future[Any]]", keep: object) -> None:
    """Wait for all promises, whether they are kept or not. Raises the first failure."""
    for promise in promises:
        await over(promise)
    del keep
    for promise in promises:
        promise.result()
