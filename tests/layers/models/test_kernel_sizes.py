"""Sizes that kernels on a GPU do not take are refused by the name of their field."""

import pytest

from layers.models.json_fields import ConfigFault
from layers.models.kernel_sizes import check_head_dim, check_sizes


def test_sizes_that_kernels_take_pass() -> None:
    check_head_dim(192)
    check_sizes({"hidden_size": 2880}, {"vocab_size": 201088})


def test_others_are_named() -> None:
    with pytest.raises(ConfigFault, match="head_dim is 192, and on a GPU it must be one of"):
        check_head_dim(192, (64, 128))
    with pytest.raises(ConfigFault, match=r"hidden_size is 96, .* a multiple of 64"):
        check_sizes({"hidden_size": 96}, {})
    with pytest.raises(ConfigFault, match=r"vocab_size is 12, .* a multiple of 8"):
        check_sizes({}, {"vocab_size": 12})
