"""The one comparator of tensors: says where, by how much, and in which sense two differ."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far apart two tensors may be. An element passes on `atol` or on `rtol`.

    atol        absolute error of an element
    rtol        error of an element relative to the wanted value
    cosine      least cosine similarity of the whole, or None
    rms         greatest root mean square error over the wanted standard deviation, or None
    """

    atol: float = 0.0
    rtol: float = 0.0
    cosine: float | None = None
    rms: float | None = None


def assert_close(
    got: torch.Tensor, want: torch.Tensor, bounds: Bounds, *, what: str = "tensor"
) -> None:
    """Fail unless `got` is `want` within `bounds`, naming the worst coordinate.

    NaN must stand where NaN is wanted, and infinities where the same infinity is wanted; both
    are then left out of the measures. Integers and booleans are compared exactly.
    """
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if not want.dtype.is_floating_point:
        assert_same_bits(got, want, what=what)
        return
    have, goal = got.detach().double().cpu(), want.detach().double().cpu()
    _assert_same_mask(have.isnan(), goal.isnan(), f"{what}: NaN")
    for sign, word in ((torch.inf, "+inf"), (-torch.inf, "-inf")):
        _assert_same_mask(have == sign, goal == sign, f"{what}: {word}")
    finite = goal.isfinite()
    have, goal = have.where(finite, 0.0), goal.where(finite, 0.0)
    error = (have - goal).abs()
    excess = error - torch.maximum(torch.full_like(goal, bounds.atol), bounds.rtol * goal.abs())
    if error.numel() and excess.max() > 0:
        at = _coordinate(excess)
        count = int((excess > 0).sum())
        raise AssertionError(
            f"{what}: {count} of {error.numel()} elements are off; worst at {at}: "
            f"got {have[at].item():.9g}, want {goal[at].item():.9g}, "
            f"error {error[at].item():.3g} (atol {bounds.atol:g}, rtol {bounds.rtol:g})"
        )
    _assert_shape_of_error(have[finite], goal[finite], bounds, what)


def assert_same_bits(got: torch.Tensor, want: torch.Tensor, *, what: str = "tensor") -> None:
    """Fail unless both tensors have the same dtype, shape and bytes, naming the first difference.

    NaNs with the same bits are equal; +0.0 and -0.0 are not.
    """
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if not want.numel():
        return
    have, goal = _raw(got), _raw(want)
    differs = (have != goal).any(-1)
    if differs.any():
        at = _coordinate(differs.double())
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.numel()} elements differ; first at {at}: "
            f"got {got[at].item()!r} ({_hex(have[at])}), "
            f"want {want[at].item()!r} ({_hex(goal[at])})"
        )


def _assert_shape_of_error(
    have: torch.Tensor, goal: torch.Tensor, bounds: Bounds, what: str
) -> None:
    """Hold the two measures over all elements; with too few of them there is nothing to measure."""
    if bounds.cosine is not None and goal.norm() > 0:
        cosine = float(have @ goal / (have.norm() * goal.norm()).clamp_min(1e-300))
        assert cosine >= bounds.cosine, f"{what}: cosine {cosine:.9f}, want >= {bounds.cosine}"
    if bounds.rms is not None and goal.numel() > 1 and goal.std() > 0:
        rms = float((have - goal).square().mean().sqrt() / goal.std())
        assert rms <= bounds.rms, f"{what}: rms/std {rms:.3g}, want <= {bounds.rms:g}"


def _assert_same_mask(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    wrong = got != want
    if wrong.any():
        at = _coordinate(wrong.double())
        verb = "stands" if got[at] else "is missing"
        raise AssertionError(f"{what} {verb} at {at} and {int(wrong.sum()) - 1} more places")


def _coordinate(score: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the greatest element, the first of equals."""
    flat = int(score.flatten().argmax())
    index: list[int] = []
    for size in reversed(score.shape):
        flat, at = divmod(flat, size)
        index.append(at)
    return tuple(reversed(index))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return `[*shape, element bytes]` uint8."""
    return tensor.detach().cpu().contiguous().unsqueeze(-1).view(torch.uint8)


def _hex(element: torch.Tensor) -> str:
    values: list[int] = element.flip(0).tolist()
    return "0x" + "".join(f"{byte:02x}" for byte in values)
