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
                    transcript.add(part.text, part.token_ids, is_cut=part.is_cut)
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
        old, new = _parts(self.transcript), _parts(transcript)
        parts = new[len(old) :]
        if old and isinstance(last := old[-1], str):
            grown = new[len(old) - 1]
            assert isinstance(grown, str)
            parts.insert(0, grown[len(last) :])
        return Growth(tuple(parts), text)


def _parts(transcript: Transcript) -> list[Part]:
    """Return what a transcript says, in order."""
    parts: list[Part] = list(transcript.pieces)
    between = iter(transcript.between)
    text = next(between, None)
    for place in range(len(transcript.turns) + 1):
        while text is not None and text.after == place:
            parts.append(text.piece)
            text = next(between, None)
        if place < len(transcript.turns):
            turn = transcript.turns[place]
            parts += [Begin(turn.role), *(turn.pieces or (turn.content,)), End(turn.role)]
    if transcript.role is not None:
        parts += [Begin(transcript.role), *transcript.begun_pieces]
    return parts
