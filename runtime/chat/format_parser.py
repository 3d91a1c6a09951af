"""The parts of an answer in a format of `runtime.chat.answer_formats`, as it comes."""

from collections.abc import Iterable

from runtime.chat.answer_parser import CallLimit, Part, Text, joined
from runtime.chat.channels import Run, Span, Splitter


class FormatParser:
    """Parses one answer, as `AnswerParser` does one in V4's format.

    parallel  False: the first whole call is the last one
    channels  the same splitter for who needs no more than the channels; use either of the two
    """

    def __init__(self, splitter: Splitter, *, parallel: bool) -> None:
        self._splitter = splitter
        self._limit = CallLimit(parallel=parallel)
        self.channels = _Channels(splitter)

    def push(self, text: str) -> list[Part]:
        """Return what `text` settles; neighbouring pieces of one channel or call come as one."""
        return self._parts(self._splitter.push(text))

    def finish(self) -> list[Part]:
        """Return what was held back; to be called once, at the answer's end."""
        return self._parts(self._splitter.finish())

    def _parts(self, spans: Iterable[Span]) -> list[Part]:
        parts: list[Part] = []
        for run, calls in spans:
            parts += self._limit.counted(calls)
            if run.channel in ("reasoning", "content") and run.shown:
                parts.append(Text(run.channel, run.shown))
        return joined(parts)


class _Channels:
    """The runs of a splitter alone."""

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter

    def push(self, text: str) -> list[Run]:
        """Return the runs that `text` settles."""
        return [run for run, _ in self._splitter.push(text) if run.text]

    def finish(self) -> list[Run]:
        """Return what was held back."""
        return [run for run, _ in self._splitter.finish() if run.text]
