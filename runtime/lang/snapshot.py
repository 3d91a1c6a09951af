"""What one state had said at some point: where a fork starts, and what it has appended since."""

from dataclasses import dataclass, field

from runtime.lang.ir import Begin, End
from runtime.lang.prompt import Transcript, Written

Part = str | Written | Begin | End


@dataclass(frozen=True, slots=True)
class Growth:
    """What a fork has appended.

    parts  text, and where turns begin and end, in order
    text   what `text()` shows of it
    """

    parts: tuple[Part, ...]
    text: str

    def append_to(self, transcript: Transcript) -> None:
        """Append it. Raises BadRequest where a turn begins or ends that cannot here."""
        for part in self.parts:
            match part:
                case str():
                    transcript.add(part)
                case Written():
                    transcript.add(part.text, part.token_ids)
                case Begin():
                    transcript.begin(part.role)
                case End():
                    transcript.end(part.role)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a fork starts.

    transcript  a copy, which nobody changes
    pieces      of the text log
    """

    transcript: Transcript = field(default_factory=Transcript)
    pieces: list[tuple[str | None, str]] = field(default_factory=list[tuple[str | None, str]])

    def growth(self, transcript: Transcript, text: str) -> Growth:
        """Return what `transcript`, which started here, has besides; `text` is shown of it."""
        return Growth((*self._new_pieces(transcript), *self._new_turns(transcript)), text)

    def _new_pieces(self, transcript: Transcript) -> list[str | Written]:
        before, now = self.transcript.pieces, transcript.pieces
        new: list[str | Written] = now[len(before) :]
        if before and isinstance(old := before[-1], str):
            grown = now[len(before) - 1]
            assert isinstance(grown, str)
            new.insert(0, grown[len(old) :])
        return new

    def _new_turns(self, transcript: Transcript) -> list[Part]:
        role, begun = self.transcript.role, self.transcript.begun
        parts: list[Part] = []
        for turn in transcript.turns[len(self.transcript.turns) :]:
            if role is None:
                parts.append(Begin(turn.role))
            parts += [turn.content[len(begun) :], End(turn.role)]
            role, begun = None, ""
        if transcript.role is not None:
            if role is None:
                parts.append(Begin(transcript.role))
            parts.append(transcript.begun[len(begun) :])
        return parts
