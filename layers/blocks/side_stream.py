"""CUDA streams for work that few tokens leave the device idle beside."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["SideStream", "first_stream"]

# More tokens fill the device by themselves.
FEW_TOKENS = 64
BRANCHES = 2


def first_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a CUDA stream whose kernels get free processors before those of a `SideStream`.

    A graph that is captured on it keeps that. What waits for a chain of small kernels is done
    sooner, and what runs beside finds room enough between them.
    """
    return torch.cuda.Stream(device, priority=-1)


class SideStream:
    """Runs parts of a layer beside what follows them, captured in a CUDA graph as branches.

    Between `beside` and `join` no tensor may be freed that both sides use: hold it in a variable
    until then. On the CPU, and for many tokens, everything runs in the order it is written.
    """

    def __init__(self, device: torch.device) -> None:
        """Make a stream for each branch, on a CUDA device."""
        count = BRANCHES if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]
        self._forked: set[int] = set()

    @contextmanager
    def beside(self, tokens: int, branch: int = 0) -> Iterator[None]:
        """Run the block after all that was launched so far, and beside what comes next.

        branch  below BRANCHES; what was run beside in the same one comes before the block as well
        """
        if not self._streams or tokens > FEW_TOKENS:
            yield
            return
        stream = self._streams[branch]
        stream.wait_stream(torch.cuda.current_stream())
        self._forked.add(branch)
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """Let what is launched from now on come after all that was run beside."""
        for branch in sorted(self._forked):
            torch.cuda.current_stream().wait_stream(self._streams[branch])
        self._forked.clear()
