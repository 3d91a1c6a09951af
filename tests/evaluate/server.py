"""A running server as the evaluation sees it: chats, counters, and traffic that evicts points."""

import itertools
from collections.abc import Mapping
from typing import Any

import httpx

from tests.evaluate.answer import Answer, read_answer

_ERROR_CHARS = 400
# Of each token, so many likeliest ones are asked for where bits may differ.
_LIKELIEST = 8


class ServerFault(Exception):
    """A server did not answer as it has to; the text is what it said."""


class HttpServer:
    """An Umbra server at `url`; may be asked from several threads.

    max_tokens     longest answer
    replay_tokens  how far before the end of the pages a replay begins
    facts          what the server told of itself when it was first asked

    Off the CPU, log-probabilities are asked for: answers may differ where choices are close.
    """

    def __init__(self, url: str, *, max_tokens: int, api_key: str | None = None) -> None:
        """Ask for the facts. Raises ServerFault, httpx.HTTPError."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=None, trust_env=False)
        self._max_tokens = max_tokens
        self._visits = itertools.count()
        self.facts = self._json("GET", "/server_info")
        self.replay_tokens = int(self.facts["replay_tokens"])

    def __enter__(self) -> "HttpServer":
        return self

    def __exit__(self, *details: object) -> None:
        self._http.close()

    def ask(self, body: Mapping[str, Any], *, salt: str) -> Answer:
        """Return the greedy answer to a chat. Raises ServerFault."""
        asked = {
            "temperature": 0,
            "max_tokens": self._max_tokens,
            **body,
            "cache_salt": salt,
            "return_token_ids": True,
        }
        if self.facts["device"] != "cpu":
            asked |= {"logprobs": True, "top_logprobs": _LIKELIEST}
        return read_answer(self._json("POST", "/v1/chat/completions", asked))

    def counters(self) -> dict[str, float]:
        """Return the scheduler's counters and gauges."""
        return self._json("GET", "/server_info")["internal_states"][0]

    def evict_points(self) -> None:
        """Send as many tiny strangers as there are rings: each leaves points of its own."""
        for _ in range(int(self.counters()["rings"])):
            visit = next(self._visits)
            self._json(
                "POST",
                "/generate",
                {
                    "input_ids": [0, 0],
                    "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                    "cache_salt": f"stranger-{visit}",
                },
            )

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        response = self._http.request(method, path, json=body)
        if response.status_code != 200:
            text = response.text[:_ERROR_CHARS]
            raise ServerFault(f"{method} {path}: {response.status_code} {text}")
        return response.json()
