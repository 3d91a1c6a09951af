"""The tokenizer spells everything, digit by digit, and loads wherever it has to."""

import json
from pathlib import Path

import deepseek_recipe as recipe
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from runtime.chat.v4_encoder import V4Encoder
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.testing.stand_in.tokenizer import SPECIALS
from tests.train.lexicon import CITIES, NAMES
from tests.train.tokenizer import VOCAB_SIZE, train_tokenizer, write_tokenizer

# Enough of them that the common words are found.
DIALOGUES = 300


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(dialogues=DIALOGUES)


def test_it_has_exactly_its_ids_and_v4s_control_tokens_first(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == list(range(len(SPECIALS)))


def test_it_is_the_same_each_time(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(dialogues=DIALOGUES).to_str() == tokenizer.to_str()


def test_each_digit_is_a_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("4217").tokens == ["4", "2", "1", "7"]
    assert tokenizer.encode("is 42").tokens[-2:] == ["4", "2"]


def test_common_words_are_one_token(tokenizer: Tokenizer) -> None:
    single = [word for word in CITIES + NAMES if len(tokenizer.encode(f" {word}").ids) == 1]

    assert len(single) > 0.8 * len(CITIES + NAMES)


@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids

    if not any(token in text for token in SPECIALS):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_servers_and_transformers_read_the_written_files(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    written = write_tokenizer(tmp_path, max_tokens=1000, dialogues=DIALOGUES)
    text = 'Anna lives in Oslo, is 42 and knows {"zebra": "Ünïcode"}.'
    expected = written.encode(text, add_special_tokens=False).ids

    assert TextTokenizer.load(tmp_path).encode(text) == expected
    V4Encoder(Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    assert recipe.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text) == expected
    other = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert other.encode(text, add_special_tokens=False) == expected
    assert other.eos_token_id == 1
    facts = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert facts["model_max_length"] == 1000
