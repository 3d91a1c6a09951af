"""Tensors by name, seen from a place in the network."""

from collections.abc import Mapping

from torch import Tensor


class Named:
    """The tensors of a mapping whose names begin with a prefix, called by the rest."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Look at `tensors`; nothing is copied."""
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._tensors

    def under(self, prefix: str) -> "Named":
        """Return the tensors whose names go on with `prefix`."""
        return Named(self._tensors, self._prefix + prefix)
