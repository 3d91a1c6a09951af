"""Families of models by their chats: a tokenizer of bytes with a family's tokens, and a template.

The templates are short ones of our own, which write turns and calls as the published ones do.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer

from runtime.chat.answer_format import AnswerFormat, answer_format
from runtime.chat.answer_formats import MARKS
from runtime.chat.answer_parser import Part, joined
from runtime.chat_template import ChatEncoder, Message
from runtime.tokenizer.detokenizer import Detokenizer
from tests.runtime.server.engine import byte_tokenizer

NL = "{{ '\\n' }}"
FUNCTION = "{'name': c.function.name, 'arguments': c.function.arguments}"

QWEN3 = (
    f"{{% if tools %}}<|im_start|>system{NL}"
    f"{{% for t in tools %}}{{{{ t | tojson }}}}{NL}{{% endfor %}}"
    f"<|im_end|>{NL}{{% endif %}}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}"
    f"{NL}{{% if m.reasoning_content %}}<think>{NL}{{{{ m.reasoning_content }}}}{NL}</think>"
    f"{NL}{NL}"
    "{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    f"{{{{ '\\n' if m.content or not loop.first }}}}<tool_call>{NL}"
    f"{{{{ {FUNCTION} | tojson }}}}{NL}</tool_call>{{% endfor %}}<|im_end|>{NL}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}<|im_start|>assistant{NL}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    f"<think>{NL}{NL}</think>{NL}{NL}{{% endif %}}{{% endif %}}"
)
LLAMA = (
    f"<|begin_of_text|>{{% if tools %}}<|start_header_id|>system<|end_header_id|>{NL}"
    'On {{ strftime_now("%d %b %Y") }} answer {"name": function, "parameters": object}'
    "{% for t in tools %}{{ t | tojson }}{% endfor %}<|eot_id|>{% endif %}{% for m in messages %}"
    "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>"
    f"{NL}{{% for c in m.tool_calls or [] %}}{{{{ '; ' if not loop.first }}}}"
    "{{ {'name': c.function.name, 'parameters': c.function.arguments} | tojson }}{% endfor %}"
    "{{ m.content or '' }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>"
    f"{NL}{{% endif %}}"
)
MISTRAL = (
    "<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('an id has 9 characters') }}{% endif %}"
    "[TOOL_RESULTS]{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}{{ m.content or '' }}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{{ ', ' if not loop.first }}{{ {'name': c.function.name, 'arguments': c.function.arguments,"
    " 'id': c.id} | tojson }}{% endfor %}]</s>{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
_DEEPSEEK = (
    "<｜begin▁of▁sentence｜>{{% for t in tools or [] %}}{{{{ t | tojson }}}}{{% endfor %}}"
    "{{% for m in messages %}}{{% if m.role == 'user' %}}<｜User｜>{{{{ m.content }}}}"
    "{{% elif m.role == 'tool' %}}<｜tool▁output▁begin｜>{{{{ m.content }}}}<｜tool▁output▁end｜>"
    "{{% else %}}<｜Assistant｜>{{% if m.reasoning_content %}}<think>{{{{ m.reasoning_content }}}}"
    "</think>{{% endif %}}{{{{ m.content or '' }}}}{{% if m.tool_calls %}}<｜tool▁calls▁begin｜>"
    "{{% for c in m.tool_calls %}}{call}<｜tool▁call▁end｜>{{% endfor %}}<｜tool▁calls▁end｜>"
    "{{% endif %}}<｜end▁of▁sentence｜>{{% endif %}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}<｜Assistant｜>{opening}{{% endif %}}"
)
DEEPSEEK_V3 = _DEEPSEEK.format(
    call="{{ '\\n' if not loop.first }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    f"{{{{ c.function.name }}}}{NL}```json{NL}{{{{ c.function.arguments + '\\n```' }}}}",
    opening=f"<think>{NL}",
)
DEEPSEEK_V31 = _DEEPSEEK.format(
    call="<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments }}",
    opening="{{ '<think>' if thinking else '</think>' }}",
)
DEEPSEEK_V32 = (
    "<｜begin▁of▁sentence｜>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>"
    "{{ '<think>' + m.reasoning_content if m.reasoning_content }}</think>{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ '\\n\\n' }}<｜DSML｜function_calls>{{ '\\n' }}"
    "{% for c in m.tool_calls %}<｜DSML｜invoke name=\"{{ c.function.name }}\">{{ '\\n' }}"
    '{% for k, v in c.function.arguments.items() %}<｜DSML｜parameter name="{{ k }}" '
    'string="{{ (v is string) | tojson }}">{{ v if v is string else v | tojson }}'
    "</｜DSML｜parameter>{{ '\\n' }}{% endfor %}</｜DSML｜invoke>{{ '\\n' }}{% endfor %}"
    "</｜DSML｜function_calls>{% endif %}<｜end▁of▁sentence｜>{% else %}<｜User｜>{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜></think>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Today: {{ strftime_now('%Y-%m-%d') }}"
    " Reasoning: {{ reasoning_effort or 'medium' }}<|end|>{% if tools %}"
    "<|start|>developer<|message|>{% for t in tools %}type {{ t.function.name }} = any;{% endfor %}"
    "<|end|>{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ m.name }}"
    " to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>{% elif m.role == 'user' %}"
    "<|start|>user<|message|>{{ m.content }}<|end|>{% else %}{% if m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<|start|>assistant<|channel|>commentary"
    " to=functions.{{ c.function.name }} <|constrain|>json<|message|>"
    "{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% if m.content %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Template, control tokens, and what ends an assistant's turn.
_THINK = ("<think>", "</think>")
FAMILIES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "qwen3": (
        QWEN3,
        ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", *_THINK),
        "<|im_end|>",
    ),
    "smol": (QWEN3, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "llama": (
        LLAMA,
        (
            *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            "<|python_tag|>",
        ),
        "<|eot_id|>",
    ),
    "mistral": (
        MISTRAL,
        (
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
            *("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        "</s>",
    ),
    **{
        name: (
            template,
            (
                *(
                    "<｜begin▁of▁sentence｜>",
                    "<｜end▁of▁sentence｜>",
                    "<｜User｜>",
                    "<｜Assistant｜>",
                ),
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
                *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>"),
                *("<｜tool▁output▁end｜>", *_THINK),
            ),
            "<｜end▁of▁sentence｜>",
        )
        for name, template in (("deepseek_v3", DEEPSEEK_V3), ("deepseek_v31", DEEPSEEK_V31))
    },
    "deepseek_v32": (
        DEEPSEEK_V32,
        (
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            *("｜DSML｜", *_THINK),
        ),
        "<｜end▁of▁sentence｜>",
    ),
    "gpt_oss": (
        HARMONY,
        (
            *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
            "<|return|>",
        ),
        "<|return|>",
    ),
}
TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "noop": {"type": "object", "properties": {}},
}


def shown_tools() -> list[dict[str, Any]]:
    """Return the tools as a template has them."""
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]


@cache
def family_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a family: bytes from 0 on, the family's tokens behind 260."""
    tokenizer = byte_tokenizer()
    _, tokens, _ = FAMILIES[name]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    return tokenizer


@cache
def family_encoder(name: str) -> ChatEncoder:
    """Return what renders a family's chats."""
    return ChatEncoder(
        family_tokenizer(name), template=FAMILIES[name][0], bos_token=None, eos_token=None
    )


@cache
def family_format(name: str) -> AnswerFormat:
    """Return how a family's answers are read."""
    return answer_format(family_tokenizer(name), [FAMILIES[name][0]])


def end_id(name: str) -> int:
    """Return the token that ends an answer of a family."""
    found = family_tokenizer(name).token_to_id(FAMILIES[name][2])
    assert found is not None
    return found


def marked(name: str, text: str) -> str:
    """Return an answer in which a family's tokens are spelled, with its marks."""
    for mark in family_format(name).ids:
        text = text.replace(MARKS[mark], mark)
    return text


def text_of(name: str, ids: Iterable[int]) -> str:
    """Return the marked text of an answer's tokens, as the server makes it."""
    tokenizer, form = family_tokenizer(name), family_format(name)
    special = frozenset(tokenizer.get_added_tokens_decoder())
    detokenizer = Detokenizer(tokenizer, special, form.marks(tools=True))
    return detokenizer.push(list(ids)) + detokenizer.finish()


def parsed(
    name: str,
    pieces: Iterable[str],
    *,
    reasoning: bool = False,
    tools: Mapping[str, Any] | None = TOOLS,
    **options: bool,
) -> list[Part]:
    """Return the parts of a marked answer in pieces."""
    parser = family_format(name).parser(reasoning=reasoning, tools=tools, **options)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined(parts + parser.finish())


def assistant(
    content: str | None, calls: list[tuple[str, Any]], reasoning: str | None = None
) -> Message:
    """Return a turn of the assistant with calls, each a name and what a template is given."""
    fields: dict[str, Any] = {}
    if calls:
        fields["tool_calls"] = [
            {
                "id": f"call0000{k}",
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }
            for k, (tool, arguments) in enumerate(calls)
        ]
    if reasoning:
        fields |= {"reasoning_content": reasoning, "thinking": reasoning}
    return Message("assistant", content, fields)
