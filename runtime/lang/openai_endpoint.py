"""The backend for any server that speaks OpenAI's API.

Plain text goes to `/completions`, a chat to `/chat/completions`. Choices are scored by `echo`,
again in one request, where a server has it for completions; a chat has no such thing.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, Any

from runtime.errors import Aborted, BadRequest, RequestFailed
from runtime.lang.address import checked_url, origin
from runtime.lang.backend import Generation, Piece
from runtime.lang.choices import ChoiceScore
from runtime.lang.connection import Connection, HttpBackend
from runtime.lang.openai_facts import TokenUsage, generation_facts
from runtime.lang.prompt import Prompt
from runtime.lang.sampling import Sampling

if TYPE_CHECKING:
    import httpx

# What a generation may write where nothing is said. Source: SGLang's language.
DEFAULT_TOKENS = 128
DEFAULT_URL = "https://api.openai.com/v1"


class OpenAI(HttpBackend):
    """A model behind an OpenAI-compatible server.

    Sampling is sent under OpenAI's names, and what OpenAI has no name for as it is: servers know
    some extensions, and refuse others.

    base_url      of the API, "/v1" included; default: $OPENAI_BASE_URL, or else OpenAI's own server
    api_key       default: $OPENAI_API_KEY
    organization  default: $OPENAI_ORG_ID
    project       default: $OPENAI_PROJECT_ID
    extra_body    fields that every generation sends besides, say {"reasoning_effort": "none"}
    token_usage   what generations have used so far

    A key, an organization and a project of the environment are sent only to the server of
    $OPENAI_BASE_URL and to OpenAI's own. An empty variable is as none.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        configured = os.environ.get("OPENAI_BASE_URL", "").strip() or DEFAULT_URL
        if base_url is None:
            url, is_known = checked_url(configured, "OPENAI_BASE_URL"), True
        else:
            url = checked_url(base_url)
            is_known = url in (DEFAULT_URL, configured.rstrip("/"))
        environment: Mapping[str, str] = os.environ if is_known else {}
        named = {
            "OpenAI-Organization": organization or environment.get("OPENAI_ORG_ID"),
            "OpenAI-Project": project or environment.get("OPENAI_PROJECT_ID"),
        }
        connection = Connection(
            url,
            api_key=api_key or environment.get("OPENAI_API_KEY"),
            headers={name: value for name, value in named.items() if value},
            transport=transport,
        )
        super().__init__(connection)
        # OpenAI's own server refuses the older name, others may not know the newer one.
        is_openai = origin(url) == origin(DEFAULT_URL)
        self._limit = "max_completion_tokens" if is_openai else "max_tokens"
        self._model = model_name
        self.token_usage = TokenUsage()
        self._extra = dict(extra_body or {})

    async def generate(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        """Continue a prompt with one request."""
        path, body = self._request(prompt, sampling)
        reply = await self.connection.post(path, body)
        choices = _choices(reply)
        self.token_usage.add(reply.get("usage"))
        return [_generation(choice, reply) for choice in choices]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Continue a prompt with one request, piece by piece."""
        path, body = self._request(prompt, sampling)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        text, usage, finish = "", None, None
        logprobs: list[dict[str, Any]] = []
        async with aclosing(self.connection.events(path, body)) as events:
            async for chunk in events:
                usage = chunk.get("usage") or usage
                for choice in _choices(chunk):
                    new = _text(choice, "delta")
                    text += new
                    finish = choice.get("finish_reason") or finish
                    logprobs.append(choice.get("logprobs") or {})
                    told = choice.get("logprobs")
                    yield Piece(new, meta_info=generation_facts(finish, usage, told))
        self.token_usage.add(usage)
        yield Piece("", _finished(text, generation_facts(finish, usage, _joined(logprobs))))

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], *, unconditional: bool
    ) -> tuple[list[ChoiceScore], dict[str, Any]]:
        """Score all choices with one request. Raises BadRequest for what `echo` cannot do."""
        if prompt.turns:
            raise BadRequest("OpenAI's API does not score choices in a chat: use Endpoint")
        if unconditional:
            raise BadRequest("OpenAI's API does not score choices by themselves: use Endpoint")
        text = prompt.text
        body = {
            "model": self._model,
            "prompt": [text + choice for choice in choices],
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "temperature": 0,
        }
        reply = await self.connection.post("/completions", body)
        rows = [c["logprobs"] for c in sorted(_choices(reply), key=lambda c: c["index"])]
        self.token_usage.add(reply.get("usage"))
        start = min(_boundary(row, len(text)) for row in rows)
        scores = [_score(c, row, start) for c, row in zip(choices, rows, strict=True)]
        return scores, {"usage": reply.get("usage")}

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Do nothing: the API has no such request, and a paid one should not be guessed."""

    async def aflush_cache(self) -> bool:
        """Refuse. Raises BadRequest: the API has no such request."""
        raise BadRequest("OpenAI's API has no cache to flush")

    async def aserver_info(self) -> dict[str, Any]:
        """Return what the API tells about the model."""
        return await self.connection.get(f"/models/{self._model}")

    def _request(self, prompt: Prompt, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        said: dict[str, Any] = {"max_tokens": DEFAULT_TOKENS, **sampling.said()}
        if (schema := said.pop("json_schema", None)) is not None:
            named = {"name": "answer", "schema": json.loads(schema)}
            said["response_format"] = {"type": "json_schema", "json_schema": named}
        body = {"model": self._model, **self._extra, **said}
        if not prompt.turns:
            if sampling.return_logprob:
                body["logprobs"] = sampling.top_logprobs_num or 0
            return "/completions", {**body, "prompt": prompt.text}
        _check_chat(prompt)
        if sampling.return_logprob:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs_num or 0}
        if prompt.begun:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        body[self._limit] = body.pop("max_tokens")
        messages = [{"role": turn.role, "content": turn.content} for turn in prompt.turns]
        return "/chat/completions", {**body, "messages": messages}


def _check_chat(prompt: Prompt) -> None:
    """Raise BadRequest for a chat that OpenAI's API has no way to say."""
    if prompt.between:
        text = prompt.between[0].text[:40]
        raise BadRequest(
            f"OpenAI's API has no place for {text!r} outside of the turns of a chat: put it into a "
            "turn, or use Endpoint"
        )
    if not prompt.open:
        raise BadRequest(
            "over OpenAI's API the model of a chat writes in the assistant's turn only: put this "
            "into assistant(...), or use Endpoint"
        )


def _choices(reply: Any) -> list[dict[str, Any]]:
    """Return the choices of a reply. Raises RequestFailed where it has none."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list):
        raise RequestFailed(f"the reply has no choices: {reply!s:.200}")
    return choices


def _text(choice: dict[str, Any], message: str) -> str:
    inner = choice.get(message)
    return (choice.get("text") if inner is None else inner.get("content")) or ""


def _generation(choice: dict[str, Any], reply: dict[str, Any]) -> Generation:
    told = (choice.get("finish_reason"), reply.get("usage"), choice.get("logprobs"))
    return _finished(_text(choice, "message"), generation_facts(*told))


def _finished(text: str, meta: dict[str, Any]) -> Generation:
    """Return a generation. Raises Aborted where the server cut it off: OpenAI's never does."""
    if meta["finish_reason"] == "abort":
        raise Aborted("the request was aborted")
    return Generation(text, None, meta)


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return log-probabilities told in chunks as a whole reply tells them: None where none are."""
    lists: dict[str, list[list[Any]]] = {name: [] for chunk in chunks for name in chunk}
    for name, parts in lists.items():
        parts += [chunk[name] for chunk in chunks if chunk.get(name) is not None]
    return {name: list(chain(*parts)) if parts else None for name, parts in lists.items()} or None


def _boundary(row: dict[str, Any], length: int) -> int:
    """Return where the first token begins that reaches beyond `length` characters."""
    offsets: list[int] = row["text_offset"]
    begun = [offset for offset in offsets if offset <= length]
    beyond = [offset for offset in offsets if offset > length]
    if not offsets or offsets[0] != 0 or not (beyond or begun):
        raise RequestFailed("the server did not echo the prompt")
    return begun[-1]


def _score(text: str, row: dict[str, Any], start: int) -> ChoiceScore:
    kept = [k for k, offset in enumerate(row["text_offset"]) if offset >= start]
    logprobs = [row["token_logprobs"][k] for k in kept]
    if not logprobs or any(value is None for value in logprobs):
        raise RequestFailed("the server told no log-probabilities of the prompt")
    texts = tuple(str(row["tokens"][k]) for k in kept)
    return ChoiceScore(text, (None,) * len(kept), texts, tuple(logprobs))
