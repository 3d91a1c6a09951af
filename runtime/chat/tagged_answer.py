"""Answers of the formats whose reasoning and calls stand between marks, split as they come.

Line ends that a format puts around its marks belong to no channel: one after `<think>`, one before
and two after `</think>`, up to two before a call, and all blanks between calls.
"""

from collections.abc import Collection, Iterable

from runtime.chat.answer_formats import THINK_MARKS, CallFormat
from runtime.chat.channels import Channel, Span, span
from runtime.chat.json_call import JsonCall
from runtime.chat.mark_lexer import Lexeme, MarkLexer
from runtime.chat.marks import THINK

_BLANKS = " \n\t\r"
_BEFORE_CALL = 2
_BEFORE_END = 1
_AFTER = {True: 1, False: 2}


class TaggedAnswer:
    """Splits one answer.

    form       how calls are written, None: none is looked for
    tools      names of the tools that may be called
    reasoning  whether the answer begins inside the reasoning
    separate   False: reasoning is content, with its marks spelled out
    """

    def __init__(
        self,
        form: CallFormat | None,
        tools: Collection[str],
        lexer: MarkLexer,
        *,
        reasoning: bool,
        separate: bool,
    ) -> None:
        self._form = form
        self._tools = tools
        self._lexer = lexer
        self._reasoning = reasoning
        self._separate = separate
        self._skip = _AFTER[True] if reasoning and separate else 0
        # Line ends that may belong to what comes next.
        self._held = ""
        # Whether the content so far is blank: a bare call may follow.
        self._blank = True
        self._call: JsonCall | None = None
        # Lexemes of a call that is not certain, or from the end of a call on.
        self._waiting: list[Lexeme] = []
        self._between = False

    def push(self, text: str) -> list[Span]:
        """Return the spans that `text` settles."""
        return self._take_all(self._lexer.push(text))

    def finish(self) -> list[Span]:
        """Return what was held back."""
        spans = self._take_all(self._lexer.finish())
        if self._call is not None:
            call, self._call = self._call, None
            parts = call.finish()
            if call.state == "text":
                return [*spans, *self._as_text(), *self._release()]
            return [*spans, span("call", "", parts=parts)]
        if self._between:
            return spans + self._end_between(drop=True)
        return spans + self._release()

    def _take_all(self, lexemes: Iterable[Lexeme]) -> list[Span]:
        return [found for lexeme in lexemes for found in self._take(lexeme)]

    def _take(self, lexeme: Lexeme) -> list[Span]:
        if self._call is not None:
            return self._take_of_call(self._call, lexeme)
        if not lexeme.mark:
            return self._between_text(lexeme.text) if self._between else self._text(lexeme.text)
        if lexeme.mark in THINK_MARKS:
            before = self._end_between(drop=True) if self._between else []
            return before + self._think(lexeme)
        if self._form is None or lexeme.mark not in self._form.marks:
            return self._text(lexeme.text, lexeme.shown)
        if lexeme.mark in self._form.openers:
            before = self._end_between(drop=True) if self._between else []
            self._open(self._form, lexeme)
            return before
        if self._between:
            self._waiting.append(lexeme)
            return []
        if lexeme.mark == self._form.block[0]:
            self._between, self._waiting, self._held = True, [Lexeme(self._held), lexeme], ""
            return []
        return [*self._release(), *self._text(lexeme.text, lexeme.shown)]

    # --- calls

    def _open(self, form: CallFormat, opener: Lexeme | None = None, *, bare: bool = False) -> None:
        """Begin a call behind its opener, or before the brace of an object."""
        self._call = JsonCall(form, self._tools, bare=bare)
        self._waiting = [Lexeme(self._held), *([] if opener is None else [opener])]
        self._held, self._skip = "", 0

    def _take_of_call(self, call: JsonCall, lexeme: Lexeme) -> list[Span]:
        parts, used = call.take(lexeme)
        if call.state == "text":
            self._waiting.append(lexeme)
            return self._no_call()
        self._waiting.append(Lexeme(lexeme.text[:used], lexeme.mark))
        if call.state == "undecided":
            return []
        self._reasoning = False
        spans = [span("call", "".join(part.text for part in self._waiting), parts=parts)]
        self._waiting = []
        if call.state == "ended":
            self._call, self._between, self._blank = None, True, False
            if rest := lexeme.text[used:]:
                spans += self._take(Lexeme(rest, lexeme.mark))
        return spans

    def _no_call(self) -> list[Span]:
        """Give out as text what has turned out to be no call; a mark that ended it counts anew."""
        self._call = None
        last = self._waiting.pop() if self._waiting[-1].mark else None
        spans = self._as_text()
        return spans if last is None else spans + self._take(last)

    def _as_text(self) -> list[Span]:
        waiting, self._waiting, self._blank = self._waiting, [], False
        return [found for w in waiting if w.text for found in self._text(w.text, w.shown)]

    def _between_text(self, text: str) -> list[Span]:
        """Take text behind a call: blanks, one more call, or content."""
        form = self._form
        assert form is not None
        rest = text.lstrip(_BLANKS + form.between)
        if blank := text[: len(text) - len(rest)]:
            self._waiting.append(Lexeme(blank))
        if not rest:
            return []
        if rest.startswith("{") and form.follows:
            spans = self._end_between(drop=True)
            self._open(form)
            return spans + self._take(Lexeme(rest))
        return self._end_between(drop=False) + self._text(rest)

    def _end_between(self, *, drop: bool) -> list[Span]:
        """Give out what stood behind a call; blanks after its last mark are content, or dropped."""
        waiting, self._waiting, self._between = self._waiting, [], False
        text = "".join(lexeme.text for lexeme in waiting)
        kept = "" if drop else text[len(text.rstrip(_BLANKS)) :]
        spans = [span(None, text[: len(text) - len(kept)])] if len(text) > len(kept) else []
        return spans + (self._text(kept) if kept else [])

    # --- reasoning and content

    def _think(self, lexeme: Lexeme) -> list[Span]:
        """Change the channel; a mark that changes nothing is dropped."""
        begins = lexeme.mark == THINK
        changes = self._reasoning != begins
        if not self._separate:
            self._reasoning = begins
            spans = self._release()
            shown = self._content(lexeme.text, lexeme.shown)
            return spans + (shown if changes else [span(None, lexeme.text)])
        spans = self._drop() if changes and not begins else self._release()
        self._reasoning = begins
        self._skip = _AFTER[begins] if changes else self._skip
        return [*spans, span(None, lexeme.text)]

    def _text(self, text: str, shown: str | None = None) -> list[Span]:
        """Take text, or a mark that is `shown`."""
        spans: list[Span] = []
        if self._skip:
            rest = text.removeprefix("\n") if self._skip == 1 else _without_line_ends(text, 2)
            cut = len(text) - len(rest)
            self._skip = self._skip - cut if not rest else 0
            if cut:
                spans.append(span(None, text[:cut]))
            text, shown = rest, None if cut else shown
        if not text:
            return spans
        if shown is not None and shown != text:
            self._blank = False
            return [*spans, *self._release(), *self._content(text, shown)]
        return spans + self._plain_text(text)

    def _plain_text(self, text: str) -> list[Span]:
        whole = self._held + text
        inside = self._reasoning and self._separate
        form = self._form
        if form is not None and form.bare and self._blank and not self._reasoning:
            rest = whole.lstrip()
            if not rest:
                self._held = whole
                return []
            if rest.startswith("{"):
                self._held = whole[: len(whole) - len(rest)]
                self._open(form, bare=True)
                return self._take(Lexeme(rest))
        keep = _BEFORE_END if inside else _BEFORE_CALL if form is not None else 0
        size = min(keep, len(whole) - len(whole.rstrip("\n")))
        text, self._held = whole[: len(whole) - size], whole[len(whole) - size :]
        return self._content(text, text) if text else []

    def _content(self, text: str, shown: str) -> list[Span]:
        channel: Channel = "reasoning" if self._reasoning and self._separate else "content"
        if channel == "content" and not self._reasoning and shown.strip():
            self._blank = False
        return [span(channel, text, shown)]

    def _release(self) -> list[Span]:
        held, self._held = self._held, ""
        return self._content(held, held) if held else []

    def _drop(self) -> list[Span]:
        """Leave out the line ends that stand before a mark."""
        held, self._held = self._held, ""
        return [span(None, held)] if held else []


def _without_line_ends(text: str, most: int) -> str:
    for _ in range(most):
        text = text.removeprefix("\n")
    return text
