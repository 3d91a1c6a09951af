"""Answers in gpt-oss's harmony format, split as they come.

An answer is messages: `<|channel|>NAME<|message|>TEXT` and an end mark, the next one behind
`<|start|>assistant`. What stands before a message's text, its header, names the channel and, of
a call, `to=functions.TOOL`. The channel `analysis` is reasoning; `final`, and `commentary` that is
no call, are content.
"""

import re
from collections.abc import Collection

from runtime.chat.answer_formats import CHANNEL, CONSTRAIN, HARMONY, MESSAGE
from runtime.chat.channels import Channel, Span, span
from runtime.chat.json_call import JsonCall
from runtime.chat.mark_lexer import Lexeme, MarkLexer

_RECIPIENT = re.compile(rf"\bto=(?:functions\.)?([^\s<{CHANNEL}{CONSTRAIN}]+)")
_ANALYSIS = re.compile(rf"{CHANNEL}\s*analysis\b")
_IN_HEADER = CHANNEL + CONSTRAIN


class HarmonyAnswer:
    """Splits one answer.

    tools      names of the tools that may be called; None: calls are content
    opened     whether the answer begins inside the text of a final message
    separate   False: reasoning is content
    """

    def __init__(
        self,
        tools: Collection[str] | None,
        lexer: MarkLexer,
        *,
        opened: bool,
        separate: bool,
    ) -> None:
        self._tools = tools
        self._lexer = lexer
        self._separate = separate
        # The header that is being read, None inside of a message's text.
        self._header: list[Lexeme] | None = None if opened else []
        self._channel: Channel = "content"
        self._call: JsonCall | None = None
        self._waiting: list[Lexeme] = []

    def push(self, text: str) -> list[Span]:
        """Return the spans that `text` settles."""
        return [found for lexeme in self._lexer.push(text) for found in self._take(lexeme)]

    def finish(self) -> list[Span]:
        """Return what was held back; a text without any channel is content."""
        spans = [found for lexeme in self._lexer.finish() for found in self._take(lexeme)]
        spans += self._end_call()
        header, self._header = self._header or [], None
        begun = any(lexeme.mark for lexeme in header)
        return spans + [
            span(None, lexeme.text) if begun else span("content", lexeme.text, lexeme.shown)
            for lexeme in header
        ]

    def _take(self, lexeme: Lexeme) -> list[Span]:
        if self._header is not None:
            return self._take_of_header(self._header, lexeme)
        if self._call is not None:
            return self._take_of_call(self._call, lexeme)
        if lexeme.mark:
            return self._begin_header(lexeme)
        return [span(self._channel, lexeme.text, lexeme.text)]

    def _take_of_header(self, header: list[Lexeme], lexeme: Lexeme) -> list[Span]:
        if lexeme.mark == MESSAGE:
            self._header = None
            self._begin_message("".join(part.text for part in header))
        elif not lexeme.mark or lexeme.mark in _IN_HEADER:
            header.append(lexeme)
            return []
        else:
            self._header = []
        return [span(None, "".join(part.text for part in [*header, lexeme]))]

    def _begin_message(self, header: str) -> None:
        recipient = _RECIPIENT.search(header)
        analysis = _ANALYSIS.search(header) and self._separate
        self._channel = "reasoning" if analysis else "content"
        if recipient is not None and self._tools is not None:
            self._call = JsonCall(HARMONY, self._tools, name=recipient[1])

    def _begin_header(self, lexeme: Lexeme) -> list[Span]:
        """End a message; a channel's mark begins the next header, where its start is left out."""
        self._header = [lexeme] if lexeme.mark in _IN_HEADER else []
        return [] if self._header else [span(None, lexeme.text)]

    def _take_of_call(self, call: JsonCall, lexeme: Lexeme) -> list[Span]:
        if lexeme.mark and not call.is_open:
            self._call = None
            return self._begin_header(lexeme)
        if not call.is_open:
            return [span(None, lexeme.text)]
        parts, used = call.take(lexeme)
        if call.state == "text":
            return self._no_call(lexeme)
        if call.state == "undecided":
            self._waiting.append(lexeme)
            return []
        text = "".join(part.text for part in self._waiting) + lexeme.text[:used]
        self._waiting = []
        spans = [span("call", text, parts=parts)]
        if rest := lexeme.text[used:]:
            spans += self._take_of_call(call, Lexeme(rest, lexeme.mark))
        return spans

    def _no_call(self, lexeme: Lexeme) -> list[Span]:
        """Give out as content what has turned out to be no call."""
        self._call, self._channel = None, "content"
        held, self._waiting = self._waiting, []
        spans = [span("content", part.text, part.shown) for part in held]
        return spans + self._take(lexeme)

    def _end_call(self) -> list[Span]:
        call, self._call = self._call, None
        if call is None:
            return []
        parts = call.finish()
        held, self._waiting = self._waiting, []
        if call.state == "text":
            return [span("content", part.text, part.shown) for part in held]
        return [span("call", "", parts=parts)]
