"""What a call must be answered, from its own tokens alone."""

from dataclasses import dataclass
from typing import TypeVar

from mem_cache.spec import TreeSpec
from runtime.sampling import SamplingSpec
from tests.simulation.network import logprob_of
from tests.simulation.recurrence import EOS, MASK, Positions, choose, mix
from tests.simulation.script import Arrive

Key = TypeVar("Key")
Value = TypeVar("Value")
REMEMBERED = 400


@dataclass(slots=True)
class Answer:
    """One choice, if nothing comes between.

    tokens    a stop token and those of a stop string among them
    values    made-up log-probability of each
    finish    "stop" or "length"
    matched   stop token or string
    text      without what ended it
    """

    tokens: list[int]
    values: list[float]
    finish: str
    matched: int | str | None
    text: str


def sampling_of(call: Arrive) -> SamplingSpec:
    """Return the sampling that a client asks for."""
    return SamplingSpec(
        n=call.n,
        max_new_tokens=call.new,
        min_new_tokens=call.least,
        temperature=call.temperature,
        seed=call.key * 7919 + 1,
        stop=call.stop,
        stop_token_ids=call.stop_ids,
        ignore_eos=call.ignore_eos,
    )


def seed_of_choice(call: Arrive, index: int) -> int:
    """Return the seed of a choice: the call's own for the first, splitmix64 beyond."""
    first = call.key * 7919 + 1
    return mix((first + index * 0x9E3779B97F4A7C15) & MASK) >> 1 if index else first


class Expected:
    """What calls must be answered in one world; remembers the last few hundred.

    context  most tokens of a sequence
    """

    def __init__(self, spec: TreeSpec, *, context: int, vocab: int) -> None:
        self.spec, self.context, self.vocab = spec, context, vocab
        self._prompts: dict[tuple[int, ...], tuple[Positions, list[int]]] = {}
        self._answers: dict[tuple[int, int], tuple[Arrive, Answer]] = {}

    def records(self, prompt: list[int]) -> list[int]:
        """Return the record of each token of a prompt."""
        return self._prompt(prompt)[1]

    def _prompt(self, prompt: list[int]) -> tuple[Positions, list[int]]:
        key = tuple(prompt)
        found = self._prompts.get(key)
        if found is None:
            at = Positions(self.spec)
            found = at, [at.advance(token) for token in prompt]
            _remember(self._prompts, key, found)
        return found

    def answer(self, call: Arrive, index: int) -> Answer:
        """Return what choice `index` of a call must say."""
        known, answer = self._answers.get((call.key, index), (None, None))
        if known is not call or answer is None:
            answer = self._compute(call, index)
            _remember(self._answers, (call.key, index), (call, answer))
        return answer

    def _compute(self, call: Arrive, index: int) -> Answer:
        sampling = sampling_of(call).resolve(
            len(call.prompt), self.context, self.vocab, seed=0, index=index
        )
        at, records = self._prompt(call.tokens)
        at = at.copy()
        stops = frozenset((*call.stop_ids, *(() if call.ignore_eos else (EOS,))))
        seed = seed_of_choice(call, index) if sampling.temperature > 0 else None
        answer = Answer([], [], "length", None, "")
        record = records[-1]
        while len(answer.tokens) < sampling.max_new_tokens:
            enough = len(answer.tokens) + 1 >= sampling.min_new_tokens
            barred = stops if len(answer.tokens) < sampling.min_new_tokens else frozenset[int]()
            token = choose(record, seed=seed, barred=barred)
            answer.tokens.append(token)
            answer.values.append(logprob_of(record, token))
            if token in stops and enough:
                answer.finish, answer.matched = "stop", token
                break
            answer.text += "" if token == EOS else chr(token)
            ends = [text for text in call.stop if answer.text.endswith(text)]
            if ends and enough:
                answer.finish, answer.matched = "stop", ends[0]
                answer.text = answer.text.removesuffix(ends[0])
                break
            record = at.advance(token)
        return answer


def _remember(known: dict[Key, Value], key: Key, value: Value) -> None:
    known[key] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
