"""What the tests of queues and channels share."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory() as name:
        yield name
