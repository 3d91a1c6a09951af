"""What was written as a checkpoint can be trained on."""

from pathlib import Path

import pytest
import torch

from layers.models.deepseek_v4.config import parse_config
from tests.testing.recall_rows import small_config
from tests.train.export import write_checkpoint
from tests.train.exported import is_exported, load_exported
from tests.train.fake_quant import working_weights
from tests.train.parameters import first_parameters
from tests.train.run_state import Progress, StateError, save_portable


def test_a_checkpoints_parameters_are_those_that_it_was_written_from_as_rounded(
    tmp_path: Path,
) -> None:
    raw = small_config()
    parameters = first_parameters(parse_config(raw), seed=1)
    write_checkpoint(tmp_path, parameters, raw)

    assert is_exported(tmp_path)
    loaded = load_exported(tmp_path)

    rounded = working_weights(parameters, torch.float32, rounded=True)
    assert loaded.keys() == parameters.keys()
    for name, tensor in loaded.items():
        assert tensor.dtype == parameters[name].dtype, name
        torch.testing.assert_close(tensor, rounded[name], rtol=0, atol=0, msg=name)


def test_other_folders_are_no_checkpoints(tmp_path: Path) -> None:
    save_portable(tmp_path, Progress(), {"embed.weight": torch.zeros(2, 2)})

    assert not is_exported(tmp_path)
    with pytest.raises(StateError, match=r"no model\.safetensors"):
        load_exported(tmp_path)
