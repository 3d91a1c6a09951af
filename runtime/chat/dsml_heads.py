"""Heads of the tags in a block of calls: what an opening tag says up to its `>`."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_INVOKE = re.compile(r'\s*invoke\s+name\s*=\s*"([^"]*)"')
_PARAMETER = re.compile(r'\s*parameter name="(.*)" string="(true|false)">', re.DOTALL)
_LOOSE_PARAMETER = re.compile(r'\s*parameter\s+name\s*=\s*"([^"]*)"([^>]*)>')
_LOOSE_KIND = re.compile(r'string\s*=\s*"?(true|false)')
_NAMING = re.compile(r'\s*(invoke|parameter)\s+name\s*=\s*"(.*)', re.DOTALL)
# A longer name is none: its end would be looked for at every ">".
_MOST_CHARS = 1024


class Parameter(NamedTuple):
    """What a parameter's head says.

    is_text  whether its text itself is the value; None: it does not say so
    """

    name: str
    is_text: bool | None


def is_head(text: str, declared: Iterable[str]) -> bool:
    """Return whether a tag's text up to some ">" is its whole head.

    declared  names of the call's parameters, of which one may hold that ">"
    """
    naming = _NAMING.match(text)
    if naming is None or len(text) > _MOST_CHARS:
        return True
    kind, rest = naming.groups()
    if kind == "invoke":
        return _INVOKE.match(text) is not None
    if _PARAMETER.fullmatch(text):
        return True
    published = (f'{name}" string="' for name in declared if '">' in name)
    if any(whole.startswith(rest) for whole in published):
        return False
    return _LOOSE_PARAMETER.match(text) is not None


def invoked_name(head: str) -> str | None:
    """Return the name of the tool that an invoke calls, None if there is none."""
    found = _INVOKE.match(head)
    return found[1] if found else None


def parameter_of(head: str) -> Parameter | None:
    """Return what a parameter's whole head says, None if it has no name."""
    exact = _PARAMETER.fullmatch(head)
    if exact:
        return Parameter(exact[1], exact[2] == "true")
    loose = _LOOSE_PARAMETER.match(head)
    if loose is None:
        return None
    kind = _LOOSE_KIND.search(loose[2])
    return Parameter(loose[1], None if kind is None else kind[1] == "true")
