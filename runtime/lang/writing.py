"""One generation of a program: asked of a backend, and published as it grows."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from runtime.errors import RequestFailed
from runtime.lang.backend import Backend, Generation
from runtime.lang.prompt import Prompt
from runtime.lang.recent import note_points
from runtime.lang.sampling import Sampling

# Takes text that is new, and what the backend tells with it.
Publish = Callable[[str, Any], None]


async def write(
    backend: Backend, prompt: Prompt, sampling: Sampling, publish: Publish, *, streams: bool
) -> list[Generation]:
    """Return what the model writes, one entry for each of `sampling.n`.

    Publishes the first entry: with `streams` piece by piece, unless there are several.
    """
    if sampling.max_tokens == 0 and sampling.return_logprob:
        return await _next_token(backend, prompt, sampling)
    if streams and sampling.n in (None, 1):
        written = [await _streamed(backend, prompt, sampling, publish)]
        note_points(backend, prompt)
        return written
    written = await backend.generate(prompt, sampling)
    note_points(backend, prompt)
    publish(written[0].text, written[0].meta_info)
    return written


async def _next_token(backend: Backend, prompt: Prompt, sampling: Sampling) -> list[Generation]:
    """Return empty texts, with the log-probabilities of the token that would come next.

    That token is written, since the log-probabilities come with it, and left out. It costs no
    step of its own. Source: what SGLang does for `max_new_tokens=0`.
    """
    asked = replace(sampling, max_tokens=1, min_tokens=None)
    written = await backend.generate(prompt, asked)
    return [replace(one, text="", token_ids=(), is_cut=False) for one in written]


async def _streamed(
    backend: Backend, prompt: Prompt, sampling: Sampling, publish: Publish
) -> Generation:
    last: Generation | None = None
    async with aclosing(backend.stream(prompt, sampling)) as pieces:
        async for piece in pieces:
            publish(piece.text, piece.meta_info)
            last = piece.last or last
    if last is None:
        raise RequestFailed("the stream broke off")
    return last
