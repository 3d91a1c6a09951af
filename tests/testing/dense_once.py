"""Numbers of fp8 and fp4 weights that the reference works out once instead of in every product.

    with dense_once():
        network.decode(rows, pools)

On the CPU the reference turns each weight into float32 whenever it is multiplied, which takes
longer than the product of a few rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor

from jit_kernels.expert_weights import reference as expert_weights
from jit_kernels.fp8_linear import reference as fp8_linear

Dense = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def dense_once() -> Iterator[None]:
    """Keep the numbers of every weight, and the weight, until the end.

    A weight that is written to, or another in its place, is worked out again.
    """
    dense_fp8, dense_fp4 = _kept(fp8_linear.dense), _kept(expert_weights.dense_fp4)
    with (
        patch.object(fp8_linear, "dense", dense_fp8),
        patch.object(expert_weights, "dense_fp8", dense_fp8),
        patch.object(expert_weights, "dense_fp4", dense_fp4),
    ):
        yield


def _kept(dense: Dense) -> Dense:
    # The operands are kept with their numbers, so that no other tensor comes to their addresses.
    found: dict[object, tuple[Tensor, Tensor, Tensor]] = {}

    def kept(weight: Tensor, scales: Tensor) -> Tensor:
        if weight.is_inference() or scales.is_inference():
            # Nobody counts how often these are written to.
            return dense(weight, scales)
        key = (_state(weight), _state(scales))
        if key not in found:
            found[key] = (weight, scales, dense(weight, scales))
        return found[key][2]

    return kept


def _state(tensor: Tensor) -> tuple[object, ...]:
    """Return what differs between tensors of different numbers."""
    return (
        *(tensor.device, tensor.data_ptr(), tensor._version),
        *(tensor.dtype, tensor.shape, tensor.stride()),
    )
