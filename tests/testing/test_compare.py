"""The comparator can fail, and says where."""

import pytest
import torch

from tests.testing.compare import Bounds, assert_close, assert_same_bits


def test_the_worst_coordinate_is_named() -> None:
    want = torch.zeros(2, 3)
    got = want.clone()
    got[1, 2], got[0, 1] = 0.5, 0.25

    with pytest.raises(AssertionError, match=r"2 of 6 .* worst at \(1, 2\): got 0.5, want 0"):
        assert_close(got, want, Bounds(atol=1e-3))


def test_an_element_passes_on_either_bound() -> None:
    want = torch.tensor([0.0, 1000.0])

    assert_close(torch.tensor([1e-4, 1001.0]), want, Bounds(atol=1e-3, rtol=1e-2))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_must_stand_where_it_is_wanted(bad: float) -> None:
    same = torch.tensor([1.0, bad])

    assert_close(same, same.clone(), Bounds())
    for got, want in ((same, torch.ones(2)), (torch.ones(2), same)):
        with pytest.raises(AssertionError, match=r"at \(1,\)"):
            assert_close(got, want, Bounds(atol=1e9))


def test_the_measures_over_all_elements_are_held() -> None:
    want = torch.randn(1000)
    got = want + 0.1 * torch.randn(1000)

    assert_close(got, want, Bounds(atol=1.0, cosine=0.99, rms=0.2))
    with pytest.raises(AssertionError, match="cosine"):
        assert_close(-got, want, Bounds(atol=100.0, cosine=0.99))
    with pytest.raises(AssertionError, match="rms/std"):
        assert_close(got, want, Bounds(atol=1.0, rms=0.01))


def test_bits_tell_zeros_apart_and_hold_equal_nans_together() -> None:
    nan = torch.tensor([torch.nan])

    assert_same_bits(nan, nan.clone())
    with pytest.raises(AssertionError, match=r"first at \(0,\).*0x80000000"):
        assert_same_bits(torch.tensor([-0.0]), torch.tensor([0.0]))
    with pytest.raises(AssertionError, match="dtype"):
        assert_same_bits(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


@pytest.mark.usefixtures("poisoned_empty")
def test_poisoned_memory_is_never_a_number() -> None:
    assert torch.empty(3).isnan().all()
    assert torch.empty_like(torch.zeros(2), dtype=torch.bfloat16).isnan().all()
    assert torch.zeros(1).new_empty(4).isnan().all()
    assert torch.empty(2, dtype=torch.float8_e4m3fn).float().isnan().all()
    assert torch.empty(2, dtype=torch.int32).tolist() == [-(2**31)] * 2
    with torch.device("meta"):
        assert torch.empty(2).is_meta
        assert torch.empty_strided((2,), (1,)).is_meta
