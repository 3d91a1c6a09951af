"""The families against transformers, and against themselves: in chunks, in company, forked."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from layers.models.contract import Settings
from layers.models.gqa.model import PlainGqa
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from tests.testing.gqa_checkpoints import CHECKPOINTS, VOCAB, assert_greedy, reference, write
from tests.testing.page_rig import PageRig

CPU = torch.device("cpu")
NEW = 12


def words(count: int) -> list[int]:
    """Return random token ids."""
    return [random.randrange(2, VOCAB) for _ in range(count)]


def network(folder: Path, **settings: Any) -> PlainGqa:
    """Return the network of a checkpoint, filled."""
    made = read_model(folder).build(CPU, Settings(**settings))
    assert isinstance(made, PlainGqa)
    load_weights(made, folder, progress=False)
    return made


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name)
    rig = PageRig(network(write(model, tmp_path)))

    for length, chunk in ((1, 1), (300, 64), (531, 1024)):
        prompt = words(length)
        assert_greedy(model, prompt, rig.greedy(prompt, NEW, chunk=chunk))
