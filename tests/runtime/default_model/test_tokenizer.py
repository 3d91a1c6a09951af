"""The stand-in's tokenizer and chat template."""

import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import pytest
from tokenizers import Tokenizer

from runtime.default_model.tokenizer import (
    EOS_ID,
    SPECIALS,
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
    assert [tokenizer.id_to_token(number) for number in range(8)] == list(SPECIALS)
    assert {len(tokenizer.id_to_token(number) or "") for number in range(8, 264)} == {1}


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
    assert tokenizer.encode("<|User|>a<|Assistant|>").ids[::2] == [3, 4]


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    assert train_tokenizer().to_str() == tokenizer.to_str()


def test_speaking_ids_are_whole_text_or_the_end(tokenizer: Tokenizer) -> None:
    ids = speaking_ids(tokenizer)

    assert ids[0] == EOS_ID
    assert len(ids) > VOCAB_SIZE // 2
    text = [tokenizer.decode([number]) for number in ids[1:]]
    assert all(text)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in text)


def test_the_chat_template_puts_system_text_first_and_ends_answers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, max_tokens=100)
    config: dict[str, Any] = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)

    text = environment.from_string(config["chat_template"]).render(
        bos_token=config["bos_token"],
        eos_token=config["eos_token"],
        add_generation_prompt=True,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None},
            {"role": "tool", "content": "3"},
        ],
    )

    assert text == (
        "<|begin_of_sentence|>Be brief.<|User|>Hi<|Assistant|><|end_of_sentence|><|tool|>3"
        "<|Assistant|>"
    )
    assert config["model_max_length"] == 100


@pytest.mark.slow
def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tmp_path, max_tokens=100)

    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)

    assert loaded("Hello")["input_ids"] == train_tokenizer().encode("Hello").ids
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.vocab_size) == (0, 1, VOCAB_SIZE)
