"""Tests of runtime.server.chat_formats: what the flags of chats decide."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.chat_template import Message
from runtime.command_line import parse_args
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.server.chat_formats import template_encoder, v4_encoder
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.server.engine import byte_tokenizer, text_ids
from tests.testing.stand_in.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def v4() -> Tokenizer:
    """A tokenizer that knows V4."""
    return train_tokenizer()


def test_a_v4_tokenizer_has_v4s_own_format(v4: Tokenizer) -> None:
    config = ServerConfig(tool_call_parser="deepseekv4", reasoning_parser="deepseek-v4")

    assert v4_encoder(v4, config, model_type="deepseek_v4") is not None
    assert v4_encoder(byte_tokenizer(), ServerConfig(), model_type="deepseek_v4") is None
    # V3.2 has the same tokens, and another format.
    assert v4_encoder(v4, ServerConfig(), model_type="deepseek_v32") is None
    mine = ServerConfig(chat_template="mine.jinja")
    assert v4_encoder(v4, mine, model_type="deepseek_v4") is None


@pytest.mark.parametrize(
    "settings", [{"tool_call_parser": "qwen25"}, {"reasoning_parser": "qwen3"}]
)
def test_settings_of_other_formats_are_refused_with_v4(
    v4: Tokenizer, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="V4's own format"):
        v4_encoder(v4, ServerConfig(**settings), model_type="deepseek_v4")


def test_v4s_parsers_are_refused_with_another_tokenizer() -> None:
    with pytest.raises(ConfigError, match="control tokens"):
        v4_encoder(
            byte_tokenizer(),
            ServerConfig(tool_call_parser="deepseekv4"),
            model_type="deepseek_v4",
        )


def encoded(tokenizer: TextTokenizer, **settings: Any) -> list[int]:
    chat, _ = template_encoder(tokenizer, ServerConfig(**settings), model_type="llama")
    return chat.encode([Message("user", "hi")])


def test_a_templates_file_replaces_the_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}", encoding="utf-8")
    tokenizer = TextTokenizer(byte_tokenizer(), {"chat_template": "theirs"})

    assert encoded(tokenizer) == text_ids("theirs")
    assert encoded(tokenizer, chat_template=str(file)) == text_ids("mine: hi")
    with pytest.raises(ConfigError, match="--chat-template: cannot read"):
        encoded(tokenizer, chat_template=str(tmp_path / "none.jinja"))


def test_the_date_is_that_of_the_start_or_of_the_setting() -> None:
    tokenizer = TextTokenizer(byte_tokenizer(), {"chat_template": "{{ strftime_now('%Y-%m-%d') }}"})

    assert encoded(tokenizer, chat_template_date="2026-02-03") == text_ids("2026-02-03")
    with pytest.raises(ConfigError, match="give a day"):
        encoded(tokenizer, chat_template_date="2026-02-30")


def test_an_unknown_parser_is_answered_with_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--tool-call-parser", "pythonic"])

    assert "qwen25" in capsys.readouterr().err
