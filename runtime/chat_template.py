"""Chat messages to token ids, by the checkpoint's own Jinja template, in a sandbox.

Message text stays text: where a client spells a control token (`<|User|>`), the model reads the
letters, not the token. The spelling is *shielded* while the template runs: its first character is
replaced by a private-use character, one for one, so that lengths, trimming and searching inside
the template behave as before. The rendered string is then cut at the control tokens that the
template itself wrote, the shields are lifted, and what lies between is encoded by a twin of the
tokenizer that knows no control tokens. Where nothing had to be shielded the whole rendered string
is encoded at once, which gives the same ids.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

from runtime.errors import BadRequest, ConfigError
from runtime.template_environment import template_environment

_SHIELDS = range(0xF0000, 0xF0000 + 4096)
_IDENTIFIER = re.compile(r"\w*")
_PRIVATE_USE = re.compile(f"[{chr(_SHIELDS.start)}-{chr(_SHIELDS.stop)}]")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat.

    role     "system", "user", "assistant" or "tool"
    content  None: the template sees none, as beside tool calls alone
    fields   what else the template sees of it: `tool_calls`, `reasoning_content`, ...
    """

    role: str
    content: str | None
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Template:
    """A compiled template, and the names that it reads."""

    compiled: jinja2.Template
    reads: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Said:
    """All that a client puts into a prompt.

    names  values by the template's names; `tools` and `documents` are None where none are given
    """

    messages: Sequence[Message]
    names: Mapping[str, Any]

    def texts(self) -> list[str]:
        """Return every text in it."""
        texts: list[str] = []
        self.changed(lambda text: texts.append(text) or text)
        return texts

    def changed(self, change: Callable[[str], str]) -> "_Said":
        """Return the same with each text changed; an identifier by itself cannot spell a token."""

        def inside(value: Any) -> Any:
            if isinstance(value, str):
                return value if _IDENTIFIER.fullmatch(value) else change(value)
            if isinstance(value, Mapping):
                pairs = cast(Mapping[str, Any], value).items()
                return {inside(key): inside(part) for key, part in pairs}
            if isinstance(value, list | tuple):
                return [inside(part) for part in cast(Sequence[Any], value)]
            return value

        messages = [
            replace(m, content=m.content and change(m.content), fields=inside(m.fields))
            for m in self.messages
        ]
        return _Said(messages, inside(self.names))


class ChatEncoder:
    """Renders and encodes chats for one tokenizer and one template.

    The twin tokenizer is made on first need: most chats spell no control token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: str | None,
        bos_token: str | None,
        eos_token: str | None,
        tool_template: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """Compile `template`; None makes every `encode` a BadRequest.

        tool_template  for chats with tools; None: the same
        now            the time that templates see; None: that of this call
        Raises ConfigError for a template that is none.
        """
        self._tokenizer = tokenizer
        environment = template_environment(now or datetime.now())
        self._template = _compiled(environment, template)
        self._tool_template = _compiled(environment, tool_template) or self._template
        self._names: dict[str, Any] = {
            "bos_token": bos_token or "",
            "eos_token": eos_token or "",
        }
        added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        self._control = {t.content: (i, t) for i, t in added.items() if _is_control(t)}
        spellings = list(self._control)
        self._alphabet = sorted(set("".join(spellings)))
        self._any_control = re.compile(_longest_of(spellings) or r"(?!)")
        # A lookahead sees spellings that overlap; the group takes their first character.
        self._starts = re.compile(f"(?s)(?={self._any_control.pattern})(.)")
        self._openings = {s[:k] for s in spellings for k in range(1, len(s))}
        self._endings = {s[k:] for s in spellings for k in range(1, len(s))}
        self._longest = max(map(len, spellings), default=0)

    @property
    def has_template(self) -> bool:
        """Whether chats can be encoded at all."""
        return self._template is not None

    @property
    def reads(self) -> frozenset[str]:
        """Names that the template reads."""
        return self._template.reads if self._template is not None else frozenset()

    @staticmethod
    def texts(messages: Sequence[Message], *more: Sequence[Mapping[str, Any]] | None) -> str:
        """Return about the text that becomes the prompt, in one piece: for bounds on its length."""
        return "".join(_Said(messages, {"": more}).texts())

    @property
    def shows_tools(self) -> bool:
        """Whether the template tells the model of tools."""
        return self._tool_template is not None and "tools" in self._tool_template.reads

    def encode(
        self,
        messages: Sequence[Message],
        *,
        continue_final: bool = False,
        open_turn: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Return the prompt's token ids.

        continue_final  the last message is the beginning of the answer: no turn is opened after it
        open_turn       end with what opens the assistant's turn
        variables       further names for the template; one that is set and that the template
                        does not read would be a silent no-op, and is refused
        tools, documents  what the template is to show of these
        Raises BadRequest where there is no template, or it refuses the messages.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise BadRequest(
                "this checkpoint has no chat template: use /v1/completions or /generate, or start "
                "the server with --chat-template FILE",
                code="no_chat_template",
            )
        given: dict[str, Any] = {**(variables or {}), "documents": documents}
        for name, value in given.items():
            if value and value != "none" and name not in template.reads:
                raise BadRequest(f"this model's chat template has no {name}", param=name)
        said = _Said(messages, {**given, "tools": tools})
        shield = self._shield_for(said.texts())
        covered = said.changed(lambda text: self._cover(text, shield))
        names = {**covered.names, "add_generation_prompt": open_turn and not continue_final}
        rendered = self._render(template, covered.messages, names)
        if continue_final:
            rendered = _cut_after(rendered, covered.messages[-1].content or "")
        if covered == said and not self._hides_control(said.texts()):
            return _encode(self._tokenizer, rendered)
        return self._encode_pieces(rendered, {after: before for before, after in shield.items()})

    def _render(
        self, template: "_Template", messages: Sequence[Message], names: Mapping[str, Any]
    ) -> str:
        turns = [{"role": m.role, "content": m.content, **m.fields} for m in messages]
        known = {**names, **self._names, "messages": turns}
        known |= {name: names[name] for name in ("tools", "documents")}
        try:
            return template.compiled.render(known)
        except jinja2.TemplateError as error:
            raise BadRequest(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise BadRequest(
                f"the chat template fails on these messages: {error}", param="messages"
            ) from error

    def _shield_for(self, contents: Iterable[str]) -> dict[str, str]:
        """Map each character of the control tokens to a private-use one that no content has."""
        taken = {char for text in contents for char in _PRIVATE_USE.findall(text)}
        free = [char for char in map(chr, _SHIELDS) if char not in taken][: len(self._alphabet)]
        if len(free) < len(self._alphabet):
            raise BadRequest("the messages use up the private-use characters", param="messages")
        return dict(zip(self._alphabet, free, strict=True))

    def _cover(self, content: str, shield: Mapping[str, str]) -> str:
        """Replace characters of `content` so that no control token can be read in or across it."""
        covered = self._starts.sub(lambda found: shield[found.group(1)], content)
        edge = range(1, min(self._longest, len(covered) + 1))
        inside = 0 < len(covered) < self._longest and any(covered in s for s in self._control)
        if inside or any(covered[:k] in self._endings for k in edge):
            covered = shield[covered[0]] + covered[1:]
        if any(covered[-k:] in self._openings for k in edge):
            covered = covered[:-1] + shield[covered[-1]]
        return covered

    def _hides_control(self, texts: Iterable[str]) -> bool:
        """Say whether the tokenizer's normalizer turns some text into a control token."""
        normalizer = self._tokenizer.normalizer
        if normalizer is None or not any(t.normalized for _, t in self._control.values()):
            return False
        return any(self._any_control.search(normalizer.normalize_str(text)) for text in texts)

    def _encode_pieces(self, rendered: str, lift: Mapping[str, str]) -> list[int]:
        table = str.maketrans(dict(lift))
        ids: list[int] = []
        start = 0
        strip_left = False
        for found in self._any_control.finditer(rendered):
            token_id, token = self._control[found.group()]
            self._append_text(
                ids, rendered[start : found.start()].translate(table), strip_left, token.lstrip
            )
            ids.append(token_id)
            start, strip_left = found.end(), token.rstrip
        self._append_text(ids, rendered[start:].translate(table), strip_left, False)
        return ids

    def _append_text(self, ids: list[int], text: str, strip_left: bool, strip_right: bool) -> None:
        text = text.lstrip() if strip_left else text
        text = text.rstrip() if strip_right else text
        if not text:
            return
        twin, real_ids = self._twin
        new = [real_ids.get(i, i) for i in _encode(twin, text)]
        if self._control_ids.intersection(new):
            raise BadRequest(
                "a message spells a control token that this tokenizer cannot write as text",
                param="messages",
            )
        ids.extend(new)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(token_id for token_id, _ in self._control.values())

    @cached_property
    def _twin(self) -> tuple[Tokenizer, dict[int, int]]:
        """The tokenizer without its control tokens, and its ids that mean others here."""
        description = json.loads(self._tokenizer.to_str())
        description["added_tokens"] = [
            token for token in description["added_tokens"] if token["content"] not in self._control
        ]
        description["post_processor"] = None
        twin = Tokenizer.from_str(json.dumps(description))
        # Added tokens are numbered in a row: those after a missing one have moved up.
        kept: dict[int, AddedToken] = twin.get_added_tokens_decoder()
        found = {i: self._tokenizer.token_to_id(token.content) for i, token in kept.items()}
        real_ids = {i: real_id for i, real_id in found.items() if real_id is not None}
        return twin, real_ids


def _compiled(environment: ImmutableSandboxedEnvironment, template: str | None) -> _Template | None:
    if template is None:
        return None
    try:
        reads = frozenset(find_undeclared_variables(environment.parse(template)))
        return _Template(environment.from_string(template), reads)
    except jinja2.TemplateSyntaxError as fault:
        raise ConfigError(f"the chat template is not valid: {fault}") from fault


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # Of the tokenizer's calls only the batch form lets other threads run meanwhile.
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _is_control(token: AddedToken) -> bool:
    # Some tokenizers add runs of blanks as tokens: those are text.
    return bool(token.content) and (token.special or not token.content.isspace())


def _longest_of(words: Iterable[str]) -> str:
    """Return a pattern for the longest of `words`, as a trie: hundreds of them cost no more."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[:1], []).append(word[1:])
    complete = rests.pop("", None) is not None
    branches = [re.escape(char) + _longest_of(rest) for char, rest in rests.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if complete else "")


def _cut_after(rendered: str, final: str) -> str:
    """Return `rendered` up to the end of the final message's text.

    Templates may trim what they print, so the trimmed text is looked for as well.
    """
    for text in (final, final.rstrip(), final.strip()):
        at = rendered.rfind(text)
        if at >= 0:
            return rendered[: at + len(text)]
    raise BadRequest(
        "the chat template changes the final message: it cannot be continued", param="messages"
    )
