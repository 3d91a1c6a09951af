"""A checkpoint's tokenizer and a nursery over it, both made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.grammar.nursery import NurserySettings
from runtime.grammar.nursery_process import NurseryProcess
from tests.testing.stand_in.tokenizer import EOS_ID, VOCAB_SIZE, train_tokenizer


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> NurserySettings:
    """The stand-in's vocabulary."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer().save(str(folder / "tokenizer.json"))
    return NurserySettings(str(folder), VOCAB_SIZE, [EOS_ID])


@pytest.fixture(scope="session")
def nursery(settings: NurserySettings) -> Iterator[NurseryProcess]:
    """A nursery that stays; grammar processes live as long as their sockets."""
    process = NurseryProcess(settings)
    yield process
    process.close()
