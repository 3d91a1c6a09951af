"""The stand-in's tokenizer and chat template."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.chat.marks import knows_v4
from tests.testing.stand_in.tokenizer import (
    BOS_ID,
    EOS_ID,
    SPECIALS,
    THINK_END_ID,
    VOCAB_SIZE,
    speaking_ids,
    train_tokenizer,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


def test_ids_are_specials_then_bytes_then_merges(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    count = len(SPECIALS)
    assert [tokenizer.id_to_token(number) for number in range(count)] == list(SPECIALS)
    singles = range(count, count + 256)
    assert {len(tokenizer.id_to_token(number) or "") for number in singles} == {1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, world!",
        "  two  spaces\n\n",
        "naïve café",
        "你好,世界",
        "🙂👩‍👩‍👧",
        "\0\x7f",
        "\t\r\n",
    ],
)
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_specials_in_a_prompt_are_one_id_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<｜User｜>a<｜Assistant｜>").ids[::2] == [3, 4]


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    assert train_tokenizer().to_str() == tokenizer.to_str()


def test_speaking_ids_are_whole_text_or_end_something(tokenizer: Tokenizer) -> None:
    ids = speaking_ids(tokenizer)

    assert ids[:2] == [EOS_ID, THINK_END_ID]
    assert tokenizer.id_to_token(THINK_END_ID) == "</think>"
    assert len(ids) > VOCAB_SIZE // 2
    text = [tokenizer.decode([number]) for number in ids[2:]]
    assert all(text)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in text)


def test_it_has_no_chat_template_but_knows_v4(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, max_tokens=100)
    config: dict[str, Any] = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))

    assert "chat_template" not in config
    assert config["model_max_length"] == 100
    assert knows_v4(tokenizer)
    names = (config["bos_token"], config["eos_token"], config["pad_token"])
    assert [tokenizer.token_to_id(name) for name in names] == [BOS_ID, EOS_ID, 2]


@pytest.mark.slow
def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tmp_path, max_tokens=100)

    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)

    assert loaded("Hello")["input_ids"] == train_tokenizer().encode("Hello").ids
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.vocab_size) == (0, 1, VOCAB_SIZE)
