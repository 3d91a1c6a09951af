"""A second CUDA stream for work that few tokens leave the device idle beside."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["SideStream", "first_stream"]

# More tokens fill the device by themselves.
FEW_TOKENS = 64


def first_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a CUDA stream whose kernels get free processors before those of a `SideStream`.

    A graph that is captured on it keeps that. What waits for a chain of small kernels is done
    sooner, and what runs beside finds room enough between them.
    """
    return torch.cuda.Stream(device, priority=-1)


class SideStream:
    """Runs a part of a layer beside what follows it, captured in a CUDA graph as a branch.

    Between `beside` and `join` no tensor may be freed that both sides use: hold it in a variable
    until then. On the CPU, and for many tokens, everything runs in the order it is written.
    """

    def __init__(self, device: torch.device) -> None:
        """Make the stream, on a CUDA device."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._forked = False

    @contextmanager
    def beside(self, tokens: int) -> Iterator[None]:
        """Run the block after all that was launched so far, and beside what comes next."""
        if self._stream is None or tokens > FEW_TOKENS:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        self._forked = True
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what is launched from now on come after the last `beside`."""
        if self._forked:
            assert self._stream is not None
            torch.cuda.current_stream().wait_stream(self._stream)
            self._forked = False
