"""The command line: one flag for each field of the configuration.

Precedence: default, then command line.
"""

import argparse
import difflib
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, NoReturn

from runtime.config import ServerConfig, check
from runtime.flag_hints import ForeignFlag, in_our_words, take_out

__all__ = ["build_parser", "parse_args"]


class _Parser(argparse.ArgumentParser):
    """argparse that suggests the nearest flag for an unknown one."""

    def error(self, message: str) -> NoReturn:
        self.print_usage()
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Words(argparse.Action):
    """Keeps several words as the tuple that a configuration holds."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the field."""
        setattr(namespace, self.dest, tuple(values))


class _NumberOr:
    """Reads a whole number, or one of a few words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def __call__(self, text: str) -> int | str:
        """Return the value of `text`. Raises ArgumentTypeError, which argparse prints."""
        if text in self._words:
            return text
        try:
            return int(text)
        except ValueError:
            words = " or ".join(self._words)
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number, nor {words}") from None


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one flag for each field of `ServerConfig`."""
    parser = _Parser(
        prog="launch_server.py",
        description="Serve a DeepSeek-V4-class model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(ServerConfig)
    for item in fields(ServerConfig):
        words = ["--" + item.name.replace("_", "-"), *item.metadata["aliases"]]
        parser.add_argument(
            *words,
            default=item.default,
            help=item.metadata["help"],
            dest=item.name,
            **_shape(hints[item.name]),
        )
    return parser


def _shape(hint: Any) -> dict[str, Any]:
    """Return argparse's options for a field of this type."""
    if hint is bool:
        return {"action": "store_true"}
    args = typing.get_args(hint)
    words = [word for arg in args if typing.get_origin(arg) is Literal for word in arg.__args__]
    if int in args and words:
        return {"type": _NumberOr(words), "metavar": "int"}
    # Before Python 3.14 `int | None` has the one origin, `Literal[...] | None` the other.
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _shape(next(arg for arg in args if arg is not type(None)))
    if typing.get_origin(hint) is Literal:
        return {"choices": args}
    if typing.get_origin(hint) is tuple:
        return {"action": _Words, "nargs": "*", "type": args[0], "metavar": args[0].__name__}
    return {"type": hint, "metavar": hint.__name__}


def parse_args(argv: list[str]) -> ServerConfig:
    """Return the configuration that `argv` (without the program name) asks for.

    Exits with status 2 and the nearest known flag on an unknown one, as argparse does on any
    other misuse. A flag of another server's is answered as `runtime.flag_hints` says: refused, or
    taken with a note on stderr. Raises ConfigError for values that contradict each other.
    """
    parser = build_parser()
    ours = [word for action in parser._actions for word in action.option_strings]
    try:
        argv, notes = take_out(in_our_words(argv), ours)
    except ForeignFlag as foreign:
        parser.error(str(foreign))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    known, unknown = parser.parse_known_args(argv)
    for word in unknown:
        if word.startswith("-"):
            near = difflib.get_close_matches(word.split("=")[0], ours, n=1, cutoff=0.65)
            hint = f"; did you mean {near[0]}?" if near else ""
            parser.error(f"unknown flag {word}{hint}")
        parser.error(f"unexpected argument {word}")
    config = ServerConfig(**vars(known))
    check(config)
    return config
