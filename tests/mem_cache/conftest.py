"""A small cache with rows that use it."""

from collections.abc import Iterator

import pytest

from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Pages of 4 tokens, SWA pages of 2, a window of 4; verified when the test is done."""
    made = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=40, swa=40, states=20)
    yield made
    made.check()
