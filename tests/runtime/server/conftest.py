"""What all tests of the API's process have: a made-up engine without last words to wait for."""

import pytest


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Wait a moment alone for what requests that were aborted still have to say."""
    monkeypatch.setattr("runtime.tokenizer.manager._LAST_WORDS_S", 0.02)
