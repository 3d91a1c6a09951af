"""Token ids that files name."""

from typing import Any

import pytest

from layers.models.json_fields import ConfigFault
from layers.models.token_ids import end_ids, vocab_size


def test_ends_of_both_files_are_kept_once_each() -> None:
    assert end_ids({"eos_token_id": 7}, {"eos_token_id": [9, 7, 8]}, 10) == (7, 9, 8)
    assert end_ids({"eos_token_id": None}, {}, 10) == ()


@pytest.mark.parametrize("value", [10, -1, True, "7", [3, 10]])
def test_an_end_that_is_no_token_is_refused(value: Any) -> None:
    with pytest.raises(ConfigFault, match="eos_token_id must be a token id below 10"):
        end_ids({"eos_token_id": value}, {}, 10)


def test_a_vocabulary_that_the_sampler_does_not_take_is_refused() -> None:
    assert vocab_size({"vocab_size": 2**18}) == 2**18
    with pytest.raises(ConfigFault, match="vocab_size must be at most"):
        vocab_size({"vocab_size": 2**18 + 1})
