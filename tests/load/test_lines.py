"""The table of figures and bounds."""

import math

import pytest

from tests.load.lines import Line, quantile, table


def test_a_figure_is_judged_by_its_bounds_alone() -> None:
    assert Line("told", math.nan).holds
    assert Line("within", 2.0, most=2.0, least=1.0).holds
    assert not Line("above", 2.1, most=2.0).holds
    assert not Line("below", 0.9, least=1.0).holds
    assert not Line("not measured", math.nan, most=2.0).holds

    shown = table([Line("CPU", 2.5, "ms", most=2.0), Line("peak", 1200.0)])
    assert shown.splitlines()[1].split() == ["CPU", "2.5", "ms", "at", "most", "2", "MISSED"]
    assert shown.splitlines()[2].split() == ["peak", "1,200"]


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 4.0), (1.0, 4.0), (0.0, 1.0)])
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value
    assert math.isnan(quantile([], share))
