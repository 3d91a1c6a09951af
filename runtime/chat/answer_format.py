"""Which format a checkpoint's answers have, and the parsers of it.

It is found from the marks in the chat template, which shows calls of earlier turns as the model
writes them; the tokenizer says which of the marks are tokens. `--tool-call-parser` and
`--reasoning-parser` outrank what is found.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from runtime.chat.answer_formats import (
    BLOCK_END,
    CALL_FORMATS,
    CALLED,
    CALLS,
    CHANNEL,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    HARMONY,
    HERMES,
    LLAMA,
    MARKS,
    MESSAGE,
    MISTRAL,
    MISTRAL_NAMED,
    OPEN,
    REASONING_FORMATS,
    RETURN,
    SEP,
    THINK_MARKS,
    CallFormat,
)
from runtime.chat.answer_parser import AnswerParser
from runtime.chat.format_parser import FormatParser
from runtime.chat.harmony_answer import HarmonyAnswer
from runtime.chat.mark_lexer import MarkLexer
from runtime.chat.marks import DSML, THINK, THINK_END
from runtime.chat.reasoning_counter import Counter, HarmonyCounter, ReasoningCounter
from runtime.chat.tagged_answer import TaggedAnswer
from runtime.errors import ConfigError

Parser = AnswerParser | FormatParser

# How Qwen3-Coder's template, and those like it, show calls: no JSON between the marks.
_XML_CALLS = re.compile(r"<function=")
_FENCED = re.compile(r"function['\" +]*" + re.escape(MARKS[SEP]) + r"|```json")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a checkpoint writes reasoning and calls.

    calls      None: it calls no tools
    reasoning  name of its parser, None where there is none
    ids        token id of each mark that is one token
    """

    calls: CallFormat | None
    reasoning: str | None
    ids: Mapping[str, int]

    @property
    def harmony(self) -> bool:
        """Whether answers are harmony's messages."""
        return HARMONY.name in (self.reasoning, self.calls.name if self.calls else None)

    def marks(self, *, tools: bool) -> dict[int, str]:
        """Return the mark of each token id that structures an answer, or with `tools` a call."""
        wanted = self._wanted(tools=tools)
        return {token_id: mark for mark, token_id in self.ids.items() if mark in wanted}

    def end_ids(self, *, tools: bool) -> tuple[int, ...]:
        """Return tokens that end an answer in this format."""
        ends = (RETURN, *([CALLED] if tools else [])) if self.harmony else ()
        return tuple(self.ids[mark] for mark in ends if mark in self.ids)

    def parser(
        self,
        *,
        reasoning: bool,
        tools: Mapping[str, Any] | None,
        parallel: bool = True,
        separate: bool = True,
        opened: bool = False,
    ) -> Parser:
        """Return a parser of one answer.

        reasoning  whether it begins inside the reasoning
        tools      schema of the parameters by tool name; None: no calls are looked for
        parallel   False: the first whole call is the last one
        separate   False: reasoning is content
        opened     whether the prompt ends inside of a message of the assistant
        """
        form = self.calls if tools is not None else None
        if form is not None and form.shape == "dsml":
            return AnswerParser(
                reasoning=reasoning, tools=tools, parallel=parallel, separate=separate
            )
        wanted = self._wanted(tools=form is not None)
        # Reasoning is told by tokens alone: people quote `<think>`.
        spelled = {MARKS[m]: m for m in wanted if m not in self.ids and m not in THINK_MARKS}
        lexer = MarkLexer(spelled)
        if self.harmony:
            names = None if form is None else frozenset(tools or ())
            splitter = HarmonyAnswer(names, lexer, opened=opened, separate=separate)
            return FormatParser(splitter, parallel=parallel)
        tagged = TaggedAnswer(
            form, frozenset(tools or ()), lexer, reasoning=reasoning, separate=separate
        )
        return FormatParser(tagged, parallel=parallel)

    def counter(
        self, tokenizer: Tokenizer, marks: Mapping[int, str], *, reasoning: bool
    ) -> Counter | None:
        """Return a counter of an answer's reasoning, None where there is none."""
        if self.harmony:
            return HarmonyCounter(marks, tokenizer.token_to_id("analysis"))
        return ReasoningCounter(marks, reasoning=reasoning) if self.reasoning else None

    def reasons(self, prompt: list[int]) -> bool:
        """Say whether a prompt ends inside the reasoning: the template has opened it."""
        begin, end = self.ids.get(THINK), self.ids.get(THINK_END)
        if self.reasoning is None or self.harmony or begin is None:
            return False
        last = next((i for i in reversed(prompt) if i in (begin, end)), None)
        return last == begin

    def _wanted(self, *, tools: bool) -> str:
        if self.harmony:
            return HARMONY.marks
        thinking = THINK_MARKS if self.reasoning else ""
        return thinking + (self.calls.marks if self.calls and tools else "")


def answer_format(
    tokenizer: Tokenizer,
    templates: Iterable[str],
    *,
    model_type: str = "",
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> AnswerFormat:
    """Return the format of a checkpoint with these chat templates.

    Raises ConfigError for a parser that needs tokens which the tokenizer lacks.
    """
    for flag, given, known in (
        ("--tool-call-parser", tool_call_parser, tuple(CALL_FORMATS)),
        ("--reasoning-parser", reasoning_parser, REASONING_FORMATS),
    ):
        if given is not None and given not in known:
            raise ConfigError(f"{flag} {given}: there are {', '.join(known)}")
    added = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    ids = {mark: added[spelling] for mark, spelling in MARKS.items() if spelling in added}
    text = "\n".join(templates)
    found = _calls(text)
    calls = found if tool_call_parser is None else CALL_FORMATS[tool_call_parser]
    if calls is MISTRAL and found is MISTRAL_NAMED:
        calls = found
    reasoning = reasoning_parser or _reasoning(text, model_type, ids)
    if calls is HARMONY or (calls is None and reasoning == HARMONY.name):
        reasoning = HARMONY.name
    needed = {
        "--tool-call-parser": _needed(calls),
        "--reasoning-parser": HARMONY.marks if reasoning == HARMONY.name else THINK_MARKS,
    }
    for flag, given in (
        ("--tool-call-parser", tool_call_parser),
        ("--reasoning-parser", reasoning_parser),
    ):
        missing = [MARKS[mark] for mark in needed[flag] if mark not in ids]
        if given is not None and missing:
            raise ConfigError(f"{flag} {given}: this tokenizer has no token {', '.join(missing)}")
    return AnswerFormat(calls, reasoning, ids)


def _needed(calls: CallFormat | None) -> str:
    return calls.marks if calls is not None and calls.shape != "tagged" else ""


def _calls(template: str) -> CallFormat | None:
    """Return the format of calls that a template shows."""

    def has(*marks: str) -> bool:
        return all(MARKS[mark] in template for mark in marks)

    if has(CHANNEL, MESSAGE):
        return HARMONY
    if has(DSML):
        return DEEPSEEK_V32
    if has(SEP) or has(BLOCK_END):
        return DEEPSEEK_V3 if _FENCED.search(template) else DEEPSEEK_V31
    if has(CALLS):
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if has(OPEN) and _XML_CALLS.search(template) is None:
        return HERMES
    llama = "<|start_header_id|>" in template and "tools" in template
    return LLAMA if llama and '"parameters"' in template else None


def _reasoning(template: str, model_type: str, ids: Mapping[str, int]) -> str | None:
    """Return the name of the reasoning's format, None where a template shows none."""
    if MARKS[CHANNEL] in template and MARKS[MESSAGE] in template:
        return HARMONY.name
    if not all(mark in ids for mark in THINK_MARKS):
        return None
    if MARKS[THINK] not in template and MARKS[THINK_END] not in template:
        return None
    deepseek = model_type.startswith("deepseek") or any(MARKS[m] in template for m in SEP + DSML)
    return REASONING_FORMATS[1] if deepseek else REASONING_FORMATS[0]
