"""A fault that quotes a long value stays short, and keeps both of its ends."""

import pytest

from layers.fault_text import MOST_CHARS, bounded
from layers.models.json_fields import ConfigFault
from layers.weights.checkpoint import WeightError
from runtime.errors import ConfigError


@pytest.mark.parametrize("kind", [ConfigFault, WeightError, ConfigError])
def test_a_fault_that_quotes_a_long_value_is_cut_in_its_middle(kind: type[Exception]) -> None:
    text = str(kind(f"hidden_size must be a number, got {'9' * 100_000!r}, in config.json"))

    assert len(text) <= MOST_CHARS
    assert text.startswith("hidden_size must be a number")
    assert text.endswith("9', in config.json")


def test_a_short_text_is_kept_as_it_is() -> None:
    assert bounded("a" * MOST_CHARS) == "a" * MOST_CHARS
