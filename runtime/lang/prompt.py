"""What has been said so far, as a backend is given it: plain text, or turns of a chat."""

from dataclasses import dataclass, field

from runtime.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Written:
    """Text that a model wrote, with the ids it wrote it in."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt; exactly one of `pieces` and `turns` has entries.

    pieces  plain text; adjacent texts are joined
    turns   a chat; where the last is the assistant's and `open`, it is the answer's beginning
    open    an answer is wanted next; False: the turns alone
    """

    pieces: tuple[str | Written, ...] = ()
    turns: tuple[Turn, ...] = ()
    open: bool = True

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

    Text outside of any turn and turns do not mix: a chat is rendered by the model's own template,
    which has no place for it.

    role   whose turn is open, if any
    begun  what the open turn says so far
    """

    pieces: list[str | Written] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    role: str | None = None
    begun: str = ""

    def copy(self) -> "Transcript":
        """Return an independent copy."""
        return Transcript(list(self.pieces), list(self.turns), self.role, self.begun)

    def add(self, text: str, token_ids: tuple[int, ...] | None = None) -> None:
        """Append text; with `token_ids`, text that a model wrote in exactly these.

        Raises BadRequest for text outside of the turns of a chat.
        """
        if not text and not token_ids:
            return
        if self.role is not None:
            self.begun += text
        elif self.turns:
            raise BadRequest("a chat has no text outside of its turns: put it into a role")
        elif token_ids:
            self.pieces.append(Written(text, token_ids))
        elif self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += text
        else:
            self.pieces.append(text)

    def begin(self, role: str) -> None:
        """Open a turn. Raises BadRequest inside another one, or after plain text."""
        if self.role is not None:
            raise BadRequest(f"the {role}'s turn begins inside the {self.role}'s")
        if self.pieces:
            raise BadRequest("a chat has no text outside of its turns: put it into a role")
        self.role, self.begun = role, ""

    def end(self, role: str) -> None:
        """Close the open turn. Raises BadRequest where another or none is open."""
        if self.role != role:
            raise BadRequest(f"the {role}'s turn ends, but {self.role or 'no'} turn is open")
        self.turns.append(Turn(role, self.begun))
        self.role, self.begun = None, ""

    def prompt(self) -> Prompt:
        """Return the prompt of a generation that stands here.

        Raises BadRequest where a chat has none: outside of the assistant's turn.
        """
        if self.role is None and not self.turns:
            return Prompt(pieces=tuple(self.pieces))
        if self.role != "assistant":
            raise BadRequest("in a chat the model writes inside an assistant's turn")
        begun = (Turn("assistant", self.begun),) if self.begun else ()
        return Prompt(turns=(*self.turns, *begun))

    def settled(self) -> Prompt:
        """Return what can be computed already, whatever is said next: closed turns, all text."""
        if self.turns or self.role is not None:
            return Prompt(turns=tuple(self.turns), open=False)
        return Prompt(pieces=tuple(self.pieces))

    def messages(self) -> list[dict[str, str]]:
        """Return the closed turns as OpenAI writes them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]
