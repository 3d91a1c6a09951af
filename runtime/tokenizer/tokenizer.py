"""Text to token ids and back, for whole texts: the checkpoint's tokenizer.json and its facts."""

import json
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from runtime.errors import BadRequest, ConfigError

_MANY_IDS = 1 << 12
# What begins a user's turn in V4's chat format, `runtime.chat.marks.USER`.
USER_TURN = "<｜User｜>"
_NO_TOKENIZER = "this checkpoint has no tokenizer.json: send token ids instead of text"


class TextTokenizer:
    """The tokenizer of a checkpoint; without tokenizer.json only token ids can be served.

    chat_template   Jinja text, if the checkpoint brings one
    tool_template   the one for chats with tools, if there is one by itself
    bos_token, eos_token   their spelling, if the checkpoint names them
    added_ids       ids of tokens that are spelled as a whole, such as control tokens
    special_ids     ids that `skip_special_tokens` leaves out of the text
    turn_id         id that begins a user's turn, where the tokenizer knows V4's chat format
    """

    def __init__(self, backend: Tokenizer | None, facts: dict[str, Any]) -> None:
        self.backend = backend
        self.bos_token = _spelling(facts.get("bos_token"))
        self.eos_token = _spelling(facts.get("eos_token"))
        templates = _templates(facts.get("chat_template"))
        self.chat_template = templates.get("default") or templates.get("tool_use")
        self.tool_template = templates.get("tool_use")
        self._post_process = facts.get("add_bos_token") is not False
        added = backend.get_added_tokens_decoder() if backend else {}
        self.added_ids = frozenset(i for i, token in added.items() if not token.content.isspace())
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.turn_id = next((i for i, token in added.items() if token.content == USER_TURN), None)

    @classmethod
    def load(cls, folder: Path | str) -> "TextTokenizer":
        """Read tokenizer.json and tokenizer_config.json of `folder`, both optional.

        A chat_template.jinja beside them is the template, additional_chat_templates/tool_use.jinja
        the one for tools. Raises ConfigError for a file that is
        there and cannot be read.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        facts = _read_facts(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"
        if template.exists():
            facts["chat_template"] = [{"name": "default", "template": _read_text(template)}]
            for_tools = folder / "additional_chat_templates" / "tool_use.jinja"
            if for_tools.exists():
                named = {"name": "tool_use", "template": _read_text(for_tools)}
                facts["chat_template"].append(named)
        return cls(_parse(path) if path.exists() else None, facts)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its exact spelling, or None."""
        return self.backend.token_to_id(token) if self.backend else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, in which the spelling of a control token means that token.

        add_special_tokens   apply the tokenizer's own post-processor (never where the checkpoint
                             says add_bos_token: false)
        Raises BadRequest without tokenizer. Releases the GIL: meant to be run in a thread.
        """
        backend = self._backend_or_refuse()
        special = add_special_tokens and self._post_process
        # The batch form alone releases the GIL, and without offsets it is twice as fast.
        return backend.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of `token_ids`; bytes that are no UTF-8 become U+FFFD.

        Raises BadRequest without tokenizer. Releases the GIL where there are many.
        """
        backend = self._backend_or_refuse()
        if len(token_ids) > _MANY_IDS:
            # The batch form alone releases it.
            return backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]
        return backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _backend_or_refuse(self) -> Tokenizer:
        if self.backend is None:
            raise BadRequest(_NO_TOKENIZER)
        return self.backend


def _templates(value: object) -> dict[str, str]:
    """Return templates by name; checkpoints write one text, or a list of named ones."""
    if isinstance(value, str):
        return {"default": value}
    found: dict[str, str] = {}
    for entry in cast(list[Any], value) if isinstance(value, list) else []:
        match entry:
            case {"name": str(name), "template": str(text)}:
                found[name] = text
            case _:
                pass
    return found


def _read_facts(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        facts: Any = json.loads(_read_text(path))
    except ValueError as fault:
        raise ConfigError(f"cannot read {path}: {fault}") from fault
    if not isinstance(facts, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return cast(dict[str, Any], facts)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot read {path}: {fault}") from fault


def _parse(path: Path) -> Tokenizer:
    """Read tokenizer.json without its truncation and padding: both would change prompts."""
    try:
        parsed = cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
        parsed["truncation"] = parsed["padding"] = None
        return Tokenizer.from_str(json.dumps(parsed))
    # tokenizers raises bare Exception for a file it does not understand.
    except Exception as fault:
        raise ConfigError(f"cannot read {path}: {fault}") from fault


def _spelling(value: object) -> str | None:
    """Return a special token's text; checkpoints write it as a string or an object."""
    if isinstance(value, dict):
        value = cast(dict[str, object], value).get("content")
    return value if isinstance(value, str) else None
