"""Which executors are cancelled together: forks and nested programs stand below their parent."""

import weakref
from typing import Protocol


class Worker(Protocol):
    """What stands in the tree: an executor."""

    def stop(self, error: BaseException | None = None) -> None:
        """End what is under way, in the event loop."""
        ...


class Member:
    """An executor's place in the tree of forks and nested programs.

    It outlives its executor while any member below it lives. References to the parent are strong
    and references to members below are weak, so that a dropped fork leaves nothing behind.

    error           what cancelled this executor and all below it, if anything did
    inherits_error  its executor failed because the state that it was forked from had failed
    """

    __slots__ = ("__weakref__", "below", "error", "executor", "inherits_error", "parent")

    def __init__(self, executor: Worker) -> None:
        self.executor = weakref.ref(executor)
        self.parent: Member | None = None
        self.below: set[weakref.ref[Member]] = set()
        self.error: BaseException | None = None
        self.inherits_error = False

    def stand_below(self, parent: "Member") -> None:
        """Become a child of `parent`."""
        self.parent = parent
        parent.below.add(weakref.ref(self, parent.below.discard))

    def living_parent(self) -> "Member | None":
        """Return the nearest member above whose executor still exists."""
        parent = self.parent
        while parent is not None and parent.executor() is None:
            parent = parent.parent
        return parent

    def origin(self) -> "Member":
        """Return the member whose failure this one's is: itself, or what it was forked from."""
        member = self
        while member.inherits_error and member.parent is not None:
            member = member.parent
        return member

    def cancel(self, error: BaseException) -> list[tuple[Worker, BaseException]]:
        """Mark this member and all below it as cancelled.

        Returns their executors, lowest first, each with its error: a member that was cancelled
        before keeps its own.
        """
        family, found = [self], list[tuple[Worker, BaseException]]()
        for member in family:  # it grows: a recursion would be too deep for a long line of forks
            # First the error, then the members below: one that joins does it in reverse order.
            member.error = why = member.error or error
            family += [below for ref in list(member.below) if (below := ref()) is not None]
            if (executor := member.executor()) is not None:
                found.append((executor, why))
        return found[::-1]
