"""Facts about a generation from OpenAI's API, under the names of the native dialect."""

from dataclasses import dataclass
from typing import Any

Facts = dict[str, Any]


@dataclass(slots=True)
class TokenUsage:
    """Tokens that a backend was charged for since `reset`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        """Begin at zero."""
        self.prompt_tokens = self.completion_tokens = 0

    def add(self, usage: Facts | None) -> None:
        """Count a reply's `usage`."""
        self.prompt_tokens += (usage or {}).get("prompt_tokens") or 0
        self.completion_tokens += (usage or {}).get("completion_tokens") or 0


def generation_facts(finish_reason: str | None, usage: Facts | None, logprobs: Any) -> Facts:
    """Return `meta_info` of a generation: the API's facts, and what follows from them."""
    told: Facts = {"finish_reason": finish_reason, "usage": usage, "logprobs": logprobs}
    for name in ("prompt_tokens", "completion_tokens"):
        if usage and usage.get(name) is not None:
            told[name] = usage[name]
    cached = ((usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        told["cached_tokens"] = cached
    return told | _rows(logprobs or {})


def _rows(logprobs: Facts) -> Facts:
    """Return log-probabilities of tokens as rows of the native dialect, whose ids are None."""
    if (content := logprobs.get("content")) is not None:
        return {
            "output_token_logprobs": [_chat_row(token) for token in content],
            "output_top_logprobs": [
                [_chat_row(top) for top in token.get("top_logprobs") or ()] for token in content
            ],
        }
    if logprobs.get("tokens") is None:
        return {}
    pairs = zip(logprobs["tokens"], logprobs.get("token_logprobs") or (), strict=False)
    tops: list[Facts | None] = logprobs.get("top_logprobs") or []
    return {
        "output_token_logprobs": [[value, None, text] for text, value in pairs],
        "output_top_logprobs": [
            [[value, None, text] for text, value in (top or {}).items()] for top in tops
        ],
    }


def _chat_row(token: Facts) -> list[Any]:
    return [token.get("logprob"), None, token.get("token")]
