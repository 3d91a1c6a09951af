"""The requests of a load: short ones of several dialects, with answers of one length."""

import random
from dataclasses import dataclass
from typing import Any

# Ids of the default model's vocabulary that are plain text.
_FIRST_ID, _LAST_ID = 300, 2000
_WORDS = ("my", "sister", "lives", "in", "Oslo", "and", "works", "as", "a", "pilot", "today")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long requests are.

    prompt_tokens  at most; a prompt has at least half as many
    new_tokens     of each answer
    """

    prompt_tokens: int = 48
    new_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: where it goes and its body."""

    path: str
    body: dict[str, Any]


def draw_ask(draw: random.Random, sizes: Sizes, *, stream: bool, rid: str | None = None) -> Ask:
    """Return a request of a dialect that the draw picks; all end at their length alone."""
    count = draw.randint(max(1, sizes.prompt_tokens // 2), sizes.prompt_tokens)
    common: dict[str, Any] = {"stream": stream, "ignore_eos": True, "temperature": 0.0}
    if rid is not None:
        common["rid"] = rid
    match draw.randrange(3):
        case 0:
            ids = [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(count)]
            sampling = {"temperature": 0.0, "max_new_tokens": sizes.new_tokens, "ignore_eos": True}
            body = {"input_ids": ids, "sampling_params": sampling, "stream": stream}
            return Ask("/generate", body if rid is None else {**body, "rid": rid})
        case 1:
            text = _text(draw, count)
            body = {**common, "prompt": text, "max_tokens": sizes.new_tokens}
            return Ask("/v1/completions", body)
        case _:
            messages = [{"role": "user", "content": _text(draw, count)}]
            body = {**common, "messages": messages, "max_tokens": sizes.new_tokens}
            return Ask("/v1/chat/completions", body)


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(words))
