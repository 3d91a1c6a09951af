"""How chats of a checkpoint are written and read: found once, when the server starts."""

from datetime import datetime
from pathlib import Path

from tokenizers import Tokenizer

from runtime.chat.answer_format import AnswerFormat, answer_format
from runtime.chat.marks import knows_v4
from runtime.chat.v4_encoder import V4Encoder
from runtime.chat_template import ChatEncoder
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.tokenizer.tokenizer import TextTokenizer

V4_CALLS, V4_REASONING = "deepseekv4", "deepseek-v4"
_AUTO = "auto"
# The model whose tokenizer has V4's control tokens, but not its format.
_LIKE_V4 = "deepseek_v32"


def v4_encoder(
    backend: Tokenizer | None, config: ServerConfig, *, model_type: str
) -> V4Encoder | None:
    """Return V4's encoder for a tokenizer that knows V4's format, None with `--chat-template`.

    V3.2's tokenizer has the same control tokens, and its chats another format: None.
    Raises ConfigError for settings of another format, or of V4's with another tokenizer.
    """
    flags = (
        ("--tool-call-parser", config.tool_call_parser, V4_CALLS),
        ("--reasoning-parser", config.reasoning_parser, V4_REASONING),
    )
    other = config.chat_template is not None or model_type == _LIKE_V4
    if backend is None or other or not knows_v4(backend):
        for flag, given, v4 in flags:
            if given == v4:
                raise ConfigError(
                    f"{flag} {v4}: V4's format is for its models and tokenizers with its control"
                    " tokens, without --chat-template"
                )
        return None
    for flag, given, v4 in flags:
        if given not in (_AUTO, v4):
            raise ConfigError(f"{flag} {given}: this checkpoint's chats are in V4's own format")
    return V4Encoder(backend)


def template_encoder(
    tokenizer: TextTokenizer, config: ServerConfig, *, model_type: str
) -> tuple[ChatEncoder, AnswerFormat]:
    """Return what writes chats by a Jinja template, and how their answers are read.

    Raises ConfigError for a template that is none, and for parsers that the tokenizer is not for.
    """
    backend = tokenizer.backend
    assert backend is not None, "without a tokenizer there are no chats"
    template, for_tools = tokenizer.chat_template, tokenizer.tool_template
    if config.chat_template is not None:
        template, for_tools = _read(Path(config.chat_template)), None
    day = config.chat_template_date
    chat = ChatEncoder(
        backend,
        template=template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        tool_template=for_tools,
        now=datetime.now() if day is None else _day(day),
    )
    answers = answer_format(
        backend,
        [text for text in (template, for_tools) if text is not None],
        model_type=model_type,
        tool_call_parser=_given(config.tool_call_parser),
        reasoning_parser=_given(config.reasoning_parser),
    )
    return chat, answers


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise ConfigError(f"--chat-template-date {text}: give a day, as 2026-01-31") from None


def _given(parser: str) -> str | None:
    return None if parser == _AUTO else parser


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"--chat-template: cannot read {path}: {fault}") from fault
