"""Files of a checkpoint folder: weights, GGUF, tokenizer, configuration of each family."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from layers.models.contract import Settings
from layers.models.json_fields import ConfigFault
from layers.models.registry import FAMILIES, read_model
from layers.weights.checkpoint import Checkpoint, TensorFiles, WeightError
from layers.weights.gguf_checkpoint import GgufCheckpoint
from runtime.errors import ConfigError
from runtime.gguf.folder import gguf_folder
from runtime.model_folder import odd_file
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.end_to_end.tiny_model import CONFIG
from tests.fuzz.mutation import damaged_bytes, damaged_json, json_text
from tests.fuzz.target import Target, assert_one_line
from tests.layers.models.gemma3.test_config import SMALL
from tests.runtime.server.engine import byte_tokenizer
from tests.testing import gqa_checkpoints, mla_checkpoints
from tests.testing.gguf_files import write_gguf
from tests.testing.gpt_oss_checkpoints import published_config
from tests.testing.stand_in.tokenizer import train_tokenizer

_REFUSALS = (ConfigError, ConfigFault, WeightError)
_TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.zeros(1, dtype=torch.bfloat16)}


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder; a refusal inside is fine if it is one line."""
    with tempfile.TemporaryDirectory() as name:
        try:
            yield Path(name)
        except _REFUSALS as fault:
            assert_one_line(fault, [Path(name)])


def _read_all(files: TensorFiles) -> None:
    for name, header in files.headers.items():
        assert tuple(files.tensor(name).shape) == header.shape


def _check_weights(data: bytes) -> None:
    with _folder() as folder:
        (folder / "model.safetensors").write_bytes(data)
        if (fault := odd_file(folder)) is not None:
            raise ConfigError(fault)
        with Checkpoint(folder) as files:
            _read_all(files)


def _check_index(data: bytes) -> None:
    with _folder() as folder:
        (folder / "model.safetensors.index.json").write_bytes(data)
        (folder / "one.safetensors").write_bytes(save(_TENSORS))
        with Checkpoint(folder) as files:
            _read_all(files)


def _check_gguf(data: bytes) -> None:
    with _folder() as folder, patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        path = folder / "model.gguf"
        path.write_bytes(data)
        made = gguf_folder(path)
        model = read_model(made)
        TextTokenizer.load(made)
        with GgufCheckpoint(made) as files:
            _read_all(files)
        assert model.facts.vocab_size > 0


def _check_config(data: bytes) -> None:
    with _folder() as folder:
        (folder / "config.json").write_bytes(data)
        model = read_model(folder)
        facts = model.facts
        assert facts.model_type in FAMILIES
        sizes = (facts.num_layers, facts.hidden_size, facts.vocab_size, facts.context_tokens)
        assert all(type(size) is int and size > 0 for size in sizes), facts
        assert all(0 <= i < facts.vocab_size for i in facts.eos_token_ids), facts
        assert all(isinstance(wheel, str) for wheel in model.wheels)
        model.smaller(Settings())
        model.check_cuda()


def _check_generation(data: bytes) -> None:
    with _folder() as folder:
        (folder / "config.json").write_bytes(json_text(CONFIG))
        (folder / "generation_config.json").write_bytes(data)
        facts = read_model(folder).facts
        assert all(0 <= i < facts.vocab_size for i in facts.eos_token_ids), facts


def _check_tokenizer(data: bytes) -> None:
    with _folder() as folder:
        (folder / "tokenizer.json").write_bytes(data)
        tokenizer = TextTokenizer.load(folder)
        ids = tokenizer.encode("Hello <|User|> wörld\n\n 12")
        assert isinstance(tokenizer.decode(ids), str)
        assert isinstance(tokenizer.decode([0, 1, 1 << 31], skip_special_tokens=True), str)


def _check_tokenizer_facts(data: bytes) -> None:
    with _folder() as folder:
        (folder / "tokenizer_config.json").write_bytes(data)
        tokenizer = TextTokenizer.load(folder)
        assert all(
            isinstance(text, str | None)
            for text in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template)
        )


def _written(write: Callable[[Path], Any], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


def _configs() -> list[Any]:
    """Return a config.json of each family."""
    texts = [
        *(
            _written(lambda folder, n=name: gqa_checkpoints.write_config(n, folder), "config.json")
            for name in gqa_checkpoints.CHECKPOINTS
        ),
        *(
            _written(
                lambda folder, n=name: mla_checkpoints.write_published(n, folder), "config.json"
            )
            for name in mla_checkpoints.CHECKPOINTS
        ),
    ]
    return [CONFIG, SMALL, published_config("wide"), *map(json.loads, texts)]


def _gguf() -> bytes:
    return _written(lambda folder: write_gguf(folder / "a.gguf"), "a.gguf")


def _json(values: list[Any]) -> st.SearchStrategy[bytes]:
    """Draw damaged values, and now and then damaged text of them."""
    return st.one_of(
        damaged_json(values).map(json_text),
        damaged_json(values).map(json_text),
        damaged_bytes(list(map(json_text, values))),
    )


_INDEX = {"metadata": {"total_size": 30}, "weight_map": dict.fromkeys(_TENSORS, "one.safetensors")}
_FACTS = {
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "chat_template": [{"name": "default", "template": "{{ messages[0]['content'] }}"}],
    "add_bos_token": True,
}
TARGETS = (
    Target("weights", damaged_bytes([save(_TENSORS)]), _check_weights, 100),
    Target("index", _json([_INDEX]), _check_index),
    Target("gguf", damaged_bytes([_gguf()]), _check_gguf),
    Target("config", _json(_configs()), _check_config, 80),
    Target("generation", _json([{"eos_token_id": [1, 2], "bos_token_id": 0}]), _check_generation),
    Target(
        "tokenizer",
        _json([json.loads(byte_tokenizer().to_str()), json.loads(train_tokenizer().to_str())]),
        _check_tokenizer,
        30,
    ),
    Target("tokenizer_facts", _json([_FACTS]), _check_tokenizer_facts),
)
