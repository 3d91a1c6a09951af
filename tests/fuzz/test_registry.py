"""A small budget of every fuzzer, and every input that was found to matter."""

import pytest

from tests.conftest import SEED
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import CORPUS


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_refused_in_one_line_or_taken(name: str) -> None:
    target = TARGETS[name]

    for path in target.corpus():
        target.check(path.read_bytes())
    target.run(target.examples, seed=SEED)


def test_every_folder_of_the_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= {*TARGETS, "bodies"}
