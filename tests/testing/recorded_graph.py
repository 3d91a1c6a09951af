"""A stand-in for CUDA graphs on the CPU: what was launched once is launched again, place by place.

As in a graph, Python does not run again: whatever it decided while it was recorded is fixed, and
every result lands where the first one did.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["RecordedGraph", "record"]


class RecordedGraph(TorchDispatchMode):
    """Notes calls of ops while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[[], Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        def call() -> Any:
            return func(*args, **(kwargs or {}))

        made = call()
        self._calls.append((call, list(_tensors(made))))
        return made

    def replay(self) -> None:
        """Make the calls again; results overwrite those of before."""
        for call, places in self._calls:
            for place, made in zip(places, _tensors(call()), strict=True):
                if place.data_ptr() != made.data_ptr():
                    place.copy_(made)


def record(run: Callable[[], Tensor]) -> RecordedGraph:
    """Return a graph of what a run launches."""
    graph = RecordedGraph()
    with graph:
        run()
    return graph


def _tensors(made: Any) -> Iterator[Tensor]:
    """Yield the tensors of what an op returns."""
    if isinstance(made, Tensor):
        yield made
    elif isinstance(made, tuple | list):
        for part in made:  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors(part)
