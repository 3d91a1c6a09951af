"""The stand-in's weight file."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig, load_config, parse_config
from layers.weights.checkpoint import Checkpoint
from layers.weights.loading import load_weights
from tests.testing.published_tensors import tensor_shapes
from tests.testing.stand_in.folder import stand_in_config
from tests.testing.stand_in.weights import write_weights

SPEAKING = [1, 20, 21, 22]


class Dense:
    """Dense tensors of every name that a configuration has."""

    def __init__(self, config: ModelConfig) -> None:
        self.weights = {
            name: torch.empty(shape, dtype=torch.int64 if name.endswith("tid2eid") else None)
            for name, shape in tensor_shapes(config).items()
        }

    def named_weights(self) -> Any:
        yield from self.weights.items()


def _config() -> ModelConfig:
    small = {"num_hidden_layers": 2, "compress_ratios": [0, 4], "num_hash_layers": 1}
    return parse_config({**stand_in_config(), **small, "index_n_heads": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_weights(folder / "model.safetensors", _config(), seed=0, speaking=SPEAKING)
    return folder


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, Tensor]:
    model = Dense(_config())
    load_weights(model, folder, progress=False)
    return model.weights


@pytest.mark.parametrize("name", ["v4_small", "v4_smooth_fp8"])
def test_names_and_shapes_are_those_of_the_published_files(oracle_dir: Path, name: str) -> None:
    if not (oracle_dir / name).is_dir():
        pytest.skip(f"no {name}")

    load_weights(Dense(load_config(oracle_dir / name)), oracle_dir / name, progress=False)


def test_tensors_are_stored_as_published(folder: Path) -> None:
    with Checkpoint(folder) as checkpoint:
        stored = {name: header.dtype for name, header in checkpoint.headers.items()}

    attn, ffn = "layers.1.attn.", "layers.1.ffn."
    assert {name.split(".")[-2] for name, dtype in stored.items() if dtype == "F8_E4M3"} == {
        *("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3")
    }
    assert all(".experts." in name for name, dtype in stored.items() if dtype == "I8")
    assert stored[f"{ffn}experts.0.w2.weight"] == "I8"
    assert stored[f"{ffn}shared_experts.w2.weight"] == "F8_E4M3"
    assert stored[f"{attn}indexer.wq_b.weight"] == "F8_E4M3"
    assert stored[f"{attn}compressor.wkv.weight"] == stored["embed.weight"] == "BF16"
    assert stored[f"{attn}attn_sink"] == stored["hc_head_fn"] == "F32"
    assert stored[f"{ffn}gate.bias"] == stored[f"{attn}compressor.ape"] == "F32"
    assert stored["layers.0.ffn.gate.tid2eid"] == "I64"


def test_the_same_seed_gives_the_same_file(folder: Path, tmp_path: Path) -> None:
    digests: list[str] = []
    for seed in (0, 1):
        write_weights(tmp_path / "again", _config(), seed=seed, speaking=SPEAKING)
        digests.append(hashlib.sha256((tmp_path / "again").read_bytes()).hexdigest())

    first = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digests[0] == first
    assert digests[1] != first


def test_logits_of_speaking_ids_are_spread_and_others_are_quiet(weights: dict[str, Tensor]) -> None:
    hidden = torch.randn(200, _config().hidden_size)
    logits = hidden @ weights["head.weight"].T

    quiet = torch.ones(logits.shape[1], dtype=torch.bool)
    quiet[SPEAKING] = False
    assert 3.0 < float(logits[:, SPEAKING].std()) < 4.2
    assert float(logits[:, quiet].std()) < 0.5


def test_nothing_is_left_unset_and_nothing_overflows(weights: dict[str, Tensor]) -> None:
    for name, weight in weights.items():
        assert weight.to(torch.float32).abs().max() < 100, name
        assert weight.is_floating_point() or int(weight.max()) < _config().n_routed_experts
