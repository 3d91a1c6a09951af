"""How the families write tool calls: one row a format, read by the parser and by the grammar.

A row holds texts in which a control token is its mark (`MARKS`), one lone surrogate each, as in
`runtime.chat.marks`. Where a tokenizer has no such token the model writes its spelling as text.

Sources: the published chat templates of Qwen2.5 and Qwen3 (Hermes), Llama 3.1 to 3.3, Mistral 7B
v0.3 and Small 3, DeepSeek V3, R1, V3.1 and V3.2, and gpt-oss (harmony). Names: SGLang.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from runtime.chat.marks import DSML, SPELLING, THINK, THINK_END

_FIRST = ord(DSML) + 1
_SPELLINGS = (
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|start|>", "<|channel|>", "<|constrain|>",
    "<|message|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip
# The spelling of each mark.
MARKS = MappingProxyType(
    {**SPELLING, **{chr(_FIRST + at): spelling for at, spelling in enumerate(_SPELLINGS)}}
)
(
    OPEN, CLOSE, PYTHON, CALLS, CALL_ID, ARGS, BLOCK, BLOCK_END, CALL, CALL_END, SEP,
    START, CHANNEL, CONSTRAIN, MESSAGE, END, CALLED, RETURN,
) = list(MARKS)[len(SPELLING):]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How one format writes calls.

    name       of the parser, as `--tool-call-parser` takes it
    shape      tagged: marks or a bare object begin a call; harmony and dsml: as their parsers say
    marks      all that structure calls
    openers    marks that begin a call; other marks stand only between calls
    head       what stands between an opener and the arguments, or the object that has them; its
               group `name` is the tool's name, without one the object has it
    bare       an object at the beginning of the content is a call if it reads as one
    follows    so is an object right after a call
    between    characters, besides blanks, that may stand between calls
    block      what is written before and after all calls
    call       what is written before and after the arguments, NAME and JSON_NAME for the name
    separator  what is written between two calls
    arguments  how a template is given arguments: a decoded object, or their text
    """

    name: str
    shape: Literal["tagged", "harmony", "dsml"]
    marks: str
    openers: str = ""
    head: re.Pattern[str] = re.compile(r"\s*")
    bare: bool = False
    follows: bool = False
    between: str = ""
    block: tuple[str, str] = ("", "")
    call: tuple[str, str] = ("", "")
    separator: str = ""
    arguments: Literal["object", "text"] = "object"

    @property
    def blank_head(self) -> bool:
        """Whether only blanks stand between an opener and the object."""
        return self.head.pattern == r"\s*"


HERMES = CallFormat(
    "qwen25",
    "tagged",
    marks=OPEN + CLOSE,
    openers=OPEN,
    call=(f'{OPEN}\n{{"name": JSON_NAME, "arguments": ', f"}}\n{CLOSE}"),
    separator="\n",
)
LLAMA = CallFormat(
    "llama3",
    "tagged",
    marks=PYTHON,
    openers=PYTHON,
    bare=True,
    follows=True,
    between=";",
    call=('{"name": JSON_NAME, "parameters": ', "}"),
    separator="; ",
)
MISTRAL = CallFormat(
    "mistral",
    "tagged",
    marks=CALLS + CALL_ID + ARGS,
    openers=CALLS,
    head=re.compile(
        rf"\s*\[?\s*|\s*(?P<name>[^\s\[{{{CALL_ID}{ARGS}]+)(?:{CALL_ID}[^{ARGS}]*)?{ARGS}\s*"
    ),
    follows=True,
    between=",]",
    block=(f"{CALLS} [", "]"),
    call=('{"name": JSON_NAME, "arguments": ', "}"),
    separator=", ",
)
# Mistral's newer templates write the name outside of any JSON; the parser reads both.
MISTRAL_NAMED = CallFormat(
    "mistral",
    "tagged",
    marks=MISTRAL.marks,
    openers=CALLS,
    head=MISTRAL.head,
    follows=True,
    between=",]",
    call=(f"{CALLS}NAME{ARGS}", ""),
)
DEEPSEEK_V3 = CallFormat(
    "deepseekv3",
    "tagged",
    marks=BLOCK + BLOCK_END + CALL + CALL_END + SEP,
    openers=CALL,
    head=re.compile(rf"\s*function\s*{SEP}\s*(?P<name>[^\s{{{SEP}]+)\s*(?:```(?:json)?\s*)?"),
    between="`",
    block=(BLOCK, BLOCK_END),
    call=(f"{CALL}function{SEP}NAME\n```json\n", f"\n```{CALL_END}"),
    separator="\n",
    arguments="text",
)
DEEPSEEK_V31 = CallFormat(
    "deepseekv31",
    "tagged",
    marks=DEEPSEEK_V3.marks,
    openers=CALL,
    head=re.compile(rf"\s*(?P<name>[^\s{{{SEP}]+)\s*{SEP}\s*"),
    block=(BLOCK, BLOCK_END),
    call=(f"{CALL}NAME{SEP}", CALL_END),
    arguments="text",
)
DEEPSEEK_V32 = CallFormat("deepseekv32", "dsml", marks=DSML, openers=DSML)
HARMONY = CallFormat(
    "gpt-oss", "harmony", marks=START + CHANNEL + CONSTRAIN + MESSAGE + END + CALLED + RETURN
)

CALL_FORMATS = MappingProxyType(
    {
        row.name: row
        for row in (HERMES, LLAMA, MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, HARMONY)
    }
)
# Reasoning stands between these marks; the names differ as SGLang's do, the reading does not.
THINKING = ("qwen3", "deepseek-r1", "deepseek-v3")
REASONING_FORMATS = (*THINKING, HARMONY.name)
THINK_MARKS = THINK + THINK_END
