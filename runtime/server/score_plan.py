"""Where a prompt ends and a choice begins, in tokens.

Text does not fall apart where a program glued it: "Answer: " + "Yes" is the tokens of
"Answer: Yes", in which the blank belongs to the second word. So the last few tokens of a prompt
that is text are tokenised again together with each choice, and all choices are scored from one
common position: the first one at which any of them differs from the prompt's own tokens. Every
choice is then judged by all the tokens it needs from the same context on. Where the prompt ends
with ids, or its end does not come out the same when tokenised alone, choices are tokenised alone.
"""

from dataclasses import dataclass

from runtime.errors import BadRequest
from runtime.server.prompt import PromptIds
from runtime.tokenizer.tokenizer import TextTokenizer

# Merges reach as far back as the pre-tokeniser's last word, which rarely has this many tokens.
HEALED_TOKENS = 8

Choice = str | list[int]


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """What is computed.

    prefix   ids that all choices share; at least one
    choices  ids of each choice after it; each at least one
    """

    prefix: list[int]
    choices: list[tuple[int, ...]]


def plan_score(tokenizer: TextTokenizer, prompt: PromptIds, choices: list[Choice]) -> ScorePlan:
    """Return the ids to score. Tokenises: meant for a thread.

    Raises BadRequest for an empty prompt, an empty choice, or a choice that spells a control
    token inside a chat.
    """
    if not prompt.ids:
        raise BadRequest("the prompt is empty", param="prompt")
    _check(tokenizer, prompt, choices)
    tail = _tail(tokenizer, prompt) if any(isinstance(c, str) for c in choices) else []
    kept = len(prompt.ids) - len(tail)
    ends = [_end(tokenizer, tail, choice) for choice in choices]
    shared = min(_common(tail, end) for end in ends)
    if kept + shared == 0:  # all of it would merge into a choice: nothing left to condition on
        kept, shared = len(prompt.ids), 0
        ends = [_end(tokenizer, [], choice) for choice in choices]
    found = [tuple(end[shared:]) for end in ends]
    for number, ids in enumerate(found):
        if not ids:  # a tokenizer may drop what it holds for nothing
            raise BadRequest(f"choices[{number}] has no tokens", param="choices")
    return ScorePlan(prompt.ids[: kept + shared], found)


def _check(tokenizer: TextTokenizer, prompt: PromptIds, choices: list[Choice]) -> None:
    for number, choice in enumerate(choices):
        if not choice:
            raise BadRequest(f"choices[{number}] is empty", param="choices")
        if prompt.chat and isinstance(choice, str):
            alone = tokenizer.encode(choice, add_special_tokens=False)
            if not tokenizer.special_ids.isdisjoint(alone):
                raise BadRequest(f"choices[{number}] spells a control token", param="choices")


def _tail(tokenizer: TextTokenizer, prompt: PromptIds) -> list[int]:
    """Return the prompt's last ids that are tokenised again, none where they do not stand alone."""
    tail = prompt.ids[len(prompt.ids) - min(HEALED_TOKENS, prompt.open_tokens) :]
    text = tokenizer.decode(tail)
    return tail if tail and tokenizer.encode(text, add_special_tokens=False) == tail else []


def _end(tokenizer: TextTokenizer, tail: list[int], choice: Choice) -> list[int]:
    """Return the ids of the prompt's tail and a choice after it."""
    if not isinstance(choice, str):
        return tail + choice
    text = tokenizer.decode(tail) if tail else ""
    return tokenizer.encode(text + choice, add_special_tokens=False)


def _common(left: list[int], right: list[int]) -> int:
    """Return how many leading ids both have."""
    length = min(len(left), len(right))
    for k in range(length):
        if left[k] != right[k]:
            return k
    return length
