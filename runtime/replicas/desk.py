"""What the front and its router of requests share: they run in one process, in two threads.

A module of its own: Ray copies the module of a router class by value, locks and all.
"""

from dataclasses import dataclass, field
from typing import Any

from runtime.replicas.board import Board, RoutedRequest

__all__ = ["DESK", "Desk"]


@dataclass(slots=True)
class Desk:
    """Requests between the front, which knows their prompts, and the router, which places them.

    to_place  requests by `HttpRequest.number`, each with the replicas to avoid
    facts     what the servers say of themselves: all the same, but for addresses
    """

    board: Board = field(default_factory=Board)
    to_place: dict[int, tuple[RoutedRequest, tuple[str, ...]]] = field(
        default_factory=dict[int, tuple[RoutedRequest, tuple[str, ...]]]
    )
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


DESK = Desk()
