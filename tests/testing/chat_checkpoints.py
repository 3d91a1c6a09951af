"""Tiny checkpoints that think in chats: templates that drop reasoning, and answers of a given form.

The templates are our own words for what the published ones write of chats without tools: Qwen3
drops the reasoning of earlier turns, and in an answer without thinking opens with an empty one that
the next turn does not have; R1 opens the reasoning itself and drops it; gpt-oss writes of an
earlier answer its final message alone. A random network says nothing of that form by itself, so a
structural tag holds it to one.
"""

import json
from pathlib import Path
from typing import Any

from tests.runtime.chat.families import FAMILIES, end_id, family_tokenizer

__all__ = ["FAMILY_OF", "TEMPLATES", "answer_fields", "write_chat_tokenizer"]

Json = dict[str, Any]

_NL = "{{ '\\n' }}"
_QWEN3 = (
    "{% set last = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}{_NL}"
    "{% if m.role == 'assistant' and loop.index0 > last.user %}"
    f"<think>{_NL}{{{{ m.reasoning_content }}}}{_NL}</think>{_NL}{_NL}{{% endif %}}"
    f"{{{{ m.content.split('</think>')[-1].lstrip('\\n') }}}}<|im_end|>{_NL}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}<|im_start|>assistant{_NL}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    f"<think>{_NL}{_NL}</think>{_NL}{_NL}{{% endif %}}{{% endif %}}"
)
_R1 = (
    "<｜begin▁of▁sentence｜>"
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}"
    "<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}<｜Assistant｜><think>{_NL}{{% endif %}}"
)
_GPT_OSS = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}"
    f"{_NL}Reasoning: {{{{ reasoning_effort or 'medium' }}}}<|end|>"
    "{% for m in messages %}{% if m.role == 'system' %}<|start|>developer<|message|>"
    "{{ m.content }}<|end|>{% elif m.role == 'user' %}"
    "<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TEMPLATES = {"qwen3": _QWEN3, "r1": _R1, "gpt_oss": _GPT_OSS}
# Whose control tokens a model has.
FAMILY_OF = {"qwen3": "qwen3", "r1": "deepseek_v3", "gpt_oss": "gpt_oss"}
# How much likelier a network ends the reasoning that no tag holds.
_ENDS = 4.0


def write_chat_tokenizer(name: str, folder: Path) -> Path:
    """Write the tokenizer of a checkpoint, of bytes and control tokens, with its template."""
    family_tokenizer(FAMILY_OF[name]).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": FAMILIES[FAMILY_OF[name]][2],
        "chat_template": TEMPLATES[name],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def answer_fields(name: str, *, thinks: bool, reasoning: int = 40, content: int = 90) -> Json:
    """Return the fields of a chat whose greedy answer has so many characters of each part."""
    tokenizer = family_tokenizer(FAMILY_OF[name])

    def token(text: str) -> Json:
        return {"type": "token", "token": tokenizer.token_to_id(text)}

    def said(text: str) -> Json:
        return {"type": "const_string", "value": text}

    def letters(count: int) -> Json:
        return {"type": "regex", "pattern": f"[a-z ]{{{count}}}[.]"}

    parts = [letters(content)]
    if name == "qwen3" and thinks:
        before = [token("<think>"), said("\n"), letters(reasoning), said("\n"), token("</think>")]
        parts = [*before, said("\n\n"), *parts]
    if name == "gpt_oss":
        channel, message = token("<|channel|>"), token("<|message|>")
        thought = [channel, said("analysis"), message, letters(reasoning), token("<|end|>")]
        final = [token("<|start|>"), said("assistant"), channel, said("final"), message]
        parts = [*(thought if thinks else []), *(final if thinks else final[2:]), *parts]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    bias = {end_id(FAMILY_OF[name]): -20.0, tokenizer.token_to_id("</think>"): _ENDS}
    fields = {"logit_bias": {str(k): v for k, v in bias.items()}} if name == "r1" else {}
    return {"structural_tag": tag, "max_tokens": 500, "return_token_ids": True, **fields}
