"""What a program says, as values: text, generations, choices, roles. `+` joins them."""

from dataclasses import dataclass, field

from runtime.lang.choices import ChoicesMethod, token_length_normalized
from runtime.lang.sampling import Sampling

# What `dtype` asks for, under SGLang's names. A number may be followed by blanks.
REGEX_INT = r"[+-]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[+-]?([0-9]*\.)?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[\w\s]*"'


@dataclass(frozen=True, slots=True)
class Expr:
    """Something that can be said; the base of the others."""

    def __add__(self, other: "str | Expr | None") -> "Seq":
        return Seq((*_parts(self), *_parts(as_expr(other))))

    def __radd__(self, other: str | None) -> "Seq":
        return Seq((*_parts(as_expr(other)), *_parts(self)))


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """Constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Text that the model writes.

    name  the variable that keeps it, None for none
    """

    name: str | None
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """The likeliest of some texts."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod = token_length_normalized


@dataclass(frozen=True, slots=True)
class Begin(Expr):
    """The beginning of a turn.

    role  "system", "user" or "assistant"
    """

    role: str


@dataclass(frozen=True, slots=True)
class End(Expr):
    """The end of a turn."""

    role: str


@dataclass(frozen=True, slots=True)
class Mark(Expr):
    """The beginning (`opens`) or the end of text that variable `name` keeps."""

    name: str
    opens: bool


@dataclass(frozen=True, slots=True)
class Seq(Expr):
    """One after the other."""

    parts: tuple[Expr, ...]


Said = str | Expr | None


def as_expr(said: object) -> Expr:
    """Return `said` as an expression: text is text, None is nothing.

    Raises TypeError for anything else.
    """
    match said:
        case Expr():
            return said
        case str():
            return Text(said)
        case None:
            return Seq(())
        case _:
            raise TypeError(f"a program says text or expressions, not {type(said).__name__}")


def leaves(expr: Expr) -> tuple[Expr, ...]:
    """Return the parts of an expression in order; none of them is a `Seq`."""
    if isinstance(expr, Seq):
        return tuple(leaf for part in expr.parts for leaf in leaves(part))
    return (expr,)


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Seq) else (expr,)
