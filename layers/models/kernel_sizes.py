"""Sizes that the kernels on a GPU take, for families whose heads share keys in groups."""

from collections.abc import Mapping

from layers.models.json_fields import ConfigFault

__all__ = ["HEAD_DIMS", "check_head_dim", "check_sizes"]

# Channels of a head that kernels of attention take.
HEAD_DIMS = (64, 128, 192, 256)
# Channels that products take at once, and rows of weights that copies do.
_DEPTH, _ROWS = 64, 8


def check_head_dim(width: int, allowed: tuple[int, ...] = HEAD_DIMS) -> None:
    """Raise ConfigFault unless heads of so many channels can be attended."""
    if width not in allowed:
        listed = ", ".join(map(str, allowed))
        raise ConfigFault(f"head_dim is {width}, and on a GPU it must be one of {listed}")


def check_sizes(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
    """Raise ConfigFault, naming the field, for sizes that products do not take.

    inputs   channels that weights multiply, by the name of the field
    outputs  rows of weights
    """
    for sizes, unit in ((inputs, _DEPTH), (outputs, _ROWS)):
        for name, size in sizes.items():
            if size % unit:
                raise ConfigFault(f"{name} is {size}, and on a GPU it must be a multiple of {unit}")
