"""What has been said so far, as a backend is given it: plain text, or turns of a chat."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runtime.errors import BadRequest

# Shorter beginnings are not worth a resume point.
MIN_SHARED_CHARS = 64
# A tokenizer splits text at blanks before it merges: what precedes the last blanks, or the last
# word with its blanks, has the same tokens whatever follows.
_LAST_WORD = re.compile(r"\s+$|\s*\S+$")


@dataclass(frozen=True, slots=True)
class Written:
    """Text that a model wrote, with the ids it wrote it in.

    is_cut  a stop string ended it: the ids spell the text, the stop string and perhaps more
    """

    text: str
    token_ids: tuple[int, ...]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat.

    pieces  what its content is made of, where a model wrote some of it
    """

    role: str
    content: str
    pieces: tuple[str | Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Between:
    """Text of a chat that stands outside of its turns.

    after  how many turns precede it
    """

    after: int
    piece: str | Written

    @property
    def text(self) -> str:
        """The text of `piece`."""
        return self.piece if isinstance(self.piece, str) else self.piece.text


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the text of a prompt: behind so many characters of a turn, or of plain text."""

    turn: int | None
    chars: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt; exactly one of `pieces` and `turns` has entries.

    pieces      plain text; adjacent texts are joined
    turns       a chat; where the last is the assistant's and `open`, it is the answer's beginning
    open        an answer is wanted next; False: the turns alone
    between     what stands outside of the turns
    unfinished  the last turn, of another role than the assistant, continues
    shared      where beginnings end that other prompts are likely to share
    """

    pieces: tuple[str | Written, ...] = ()
    turns: tuple[Turn, ...] = ()
    open: bool = True
    between: tuple[Between, ...] = ()
    unfinished: bool = False
    shared: tuple[Place, ...] = ()

    def parting(self, arguments: Sequence[str]) -> "Prompt":
        """Return the prompt with `shared` where `arguments` of its program first stand in it.

        Those are the first and the last of these places, behind text that is worth it.
        """
        if self.between or any(not isinstance(piece, str) for piece in self.pieces):
            return self
        turns = [(k, turn.content) for k, turn in enumerate(self.turns)] or [(None, self.text)]
        found: set[tuple[int, int]] = set()
        for argument in arguments:
            for number, (_, text) in enumerate(turns):
                if (at := text.find(argument)) >= 0:
                    found.add((number, at))
                    break
        before = [sum(len(text) for _, text in turns[:number]) for number in range(len(turns))]
        worth = sorted(p for p in found if p[1] and before[p[0]] + p[1] >= MIN_SHARED_CHARS)
        ends = dict.fromkeys((*worth[:1], *worth[-1:]))
        return replace(self, shared=tuple(Place(turns[n][0], at) for n, at in ends))

    def with_stable_end(self) -> "Prompt":
        """Return the prompt with `shared` before the last word of text that may go on.

        That word may become one token with what is said next.
        """
        if self.between or any(not isinstance(piece, str) for piece in self.pieces):
            return self
        turn = len(self.turns) - 1 if self.unfinished or self.begun else None
        text = self.text if turn is None else self.turns[turn].content
        chars = len(_LAST_WORD.sub("", text))
        before = 0 if turn is None else sum(len(t.content) for t in self.turns[:turn])
        if not chars or before + chars < MIN_SHARED_CHARS:
            return self
        return replace(self, shared=(Place(turn, chars),))

    @property
    def text(self) -> str:
        """The text of `pieces`."""
        return "".join(p if isinstance(p, str) else p.text for p in self.pieces)

    @property
    def begun(self) -> str:
        """What the assistant's open turn says already."""
        last = self.turns[-1] if self.turns and self.open else None
        return last.content if last is not None and last.role == "assistant" else ""

    def __bool__(self) -> bool:
        return bool(self.pieces or self.turns)


@dataclass(slots=True)
class Transcript:
    """What one program has said so far; a fork takes a copy.

    Once a turn has begun, text outside of turns is `between` them.

    role          whose turn is open, if any
    begun         what the open turn says so far
    begun_pieces  the same in pieces, the first of which is text
    """

    pieces: list[str | Written] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    role: str | None = None
    begun: str = ""
    between: list[Between] = field(default_factory=list)
    begun_pieces: list[str | Written] = field(default_factory=list)

    def copy(self) -> "Transcript":
        """Return an independent copy."""
        lists = list(self.pieces), list(self.turns)
        began = list(self.between), list(self.begun_pieces)
        return Transcript(*lists, self.role, self.begun, *began)

    def add(
        self, text: str, token_ids: tuple[int, ...] | None = None, *, is_cut: bool = False
    ) -> None:
        """Append text; with `token_ids`, text that a model wrote in these; see `Written`."""
        if not text and not token_ids:
            return
        piece = Written(text, token_ids, is_cut) if token_ids else text
        if self.role is not None:
            self.begun += text
            self._add_begun(piece if text else text)
        elif self.turns:
            self._add_between(piece)
        elif isinstance(piece, str) and self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += piece
        else:
            self.pieces.append(piece)

    def _add_begun(self, piece: str | Written) -> None:
        match self.begun_pieces[-1], piece:
            case str(text), str():
                self.begun_pieces[-1] = text + piece
            case _:
                self.begun_pieces.append(piece)

    def _add_between(self, piece: str | Written) -> None:
        after, last = len(self.turns), self.between[-1] if self.between else None
        match last, piece:
            case Between(after=place, piece=str(text)), str() if place == after:
                self.between[-1] = Between(after, text + piece)
            case _:
                self.between.append(Between(after, piece))

    def begin(self, role: str) -> None:
        """Open a turn. Raises BadRequest inside another one."""
        if self.role is not None:
            raise BadRequest(f"the {role}'s turn begins inside the {self.role}'s")
        self.between += [Between(0, piece) for piece in self.pieces]
        self.pieces.clear()
        self.role, self.begun, self.begun_pieces = role, "", [""]

    def end(self, role: str) -> None:
        """Close the open turn. Raises BadRequest where another or none is open."""
        if self.role != role:
            raise BadRequest(f"the {role}'s turn ends, but {self.role or 'no'} turn is open")
        self.turns.append(self._open_turn(role))
        self.role, self.begun, self.begun_pieces = None, "", []

    def _open_turn(self, role: str) -> Turn:
        is_written = any(isinstance(piece, Written) for piece in self.begun_pieces)
        return Turn(role, self.begun, tuple(self.begun_pieces) if is_written else ())

    def prompt(self) -> Prompt:
        """Return the prompt of a generation that stands here."""
        if self.role is None and not self.turns:
            return Prompt(pieces=tuple(self.pieces))
        turns, between = tuple(self.turns), tuple(self.between)
        if self.role is None:
            return Prompt(turns=turns, open=False, between=between)
        begun = self._open_turn(self.role)
        if self.role != "assistant":
            return Prompt(turns=(*turns, begun), open=False, between=between, unfinished=True)
        return Prompt(turns=(*turns, begun) if self.begun else turns, between=between)

    def settled(self) -> Prompt:
        """Return what can be computed already, whatever is said next."""
        if self.role in (None, "assistant") or self.begun:
            return self.prompt()
        return self.closed()

    def closed(self) -> Prompt:
        """Return the closed turns of a chat."""
        return Prompt(turns=tuple(self.turns), open=False, between=tuple(self.between))

    def messages(self) -> list[dict[str, str]]:
        """Return the closed turns as OpenAI writes them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]
