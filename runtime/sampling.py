"""What a client may ask of sampling: one checked value, resolved per choice for the scheduler.

The caps bound what one request can make the engine hold or loop over before admission sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from runtime.errors import BadSampling, GrammarError, PromptTooLong
from runtime.messages import Grammar, Sampling

# Choices share the prompt's pages, so one costs a row, not a prefill: as many as the default
# --max-running-requests rows can run at once.
MAX_CHOICES = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_GRAMMAR_CHARS = 1 << 18
MAX_NEW_TOKENS = (1 << 31) - 1
GREEDY_BELOW = 1e-5

_INT64 = 1 << 63
_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sampling as a client asked for it, not yet bound to a prompt.

    n                       choices per prompt
    max_new_tokens          asked for aloud: a request it does not fit is refused; None: not asked
    default_new_tokens      used, and cut to what the context leaves, when nothing was asked;
                            None: all that the context leaves
    temperature             below 1e-5: greedy
    top_p                   0: greedy, as the likeliest token is kept in any case
    top_k                   -1 or 0 keeps all
    seed                    None: the server's
    stop                    strings that end the request; cut off the text unless `no_stop_trim`
    stop_token_ids          ids that end the request, besides the model's own
    skip_special_tokens     leave control tokens out of the text
    spaces_between_special_tokens   accepted for clients that send it; byte-level tokenizers
                            put no spaces there
    grammar                 what the output must be
    """

    n: int = 1
    max_new_tokens: int | None = None
    default_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    grammar: Grammar | None = None

    def validate(self, *, vocab_size: int) -> None:
        """Raise BadSampling for the first field that is out of range, GrammarError for a grammar
        that is too long; what it says is judged where it is compiled.

        vocab_size  number of token ids; `logit_bias` and `stop_token_ids` must lie below it
        """
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_lengths(self)
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, MAX_NEW_TOKENS)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -_INT64, _INT64 - 1)
        _check_stop(self.stop)
        _check_ids(self, vocab_size)
        if self.grammar is not None and len(self.grammar.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(
                f"the {self.grammar.kind} has {len(self.grammar.text)} characters, "
                f"the most is {MAX_GRAMMAR_CHARS}",
                param=self.grammar.field,
            )

    def resolve(
        self, prompt_tokens: int, context_tokens: int, vocab_size: int, *, seed: int, index: int
    ) -> Sampling:
        """Return what the scheduler needs to sample choice `index` of a prompt.

        seed   used when the client brought none; 64 bits
        Raises BadSampling for a field out of range, PromptTooLong where the prompt, or the prompt
        and an asked-for number of new tokens, exceed the context.
        """
        self.validate(vocab_size=vocab_size)
        new_tokens = self._new_tokens(prompt_tokens, context_tokens)
        greedy = self.temperature < GREEDY_BELOW or self.top_p == 0.0
        everything = self.top_k <= 0 or self.top_k >= vocab_size
        return Sampling(
            max_new_tokens=new_tokens,
            seed=_seed_of_choice(seed if self.seed is None else self.seed, index),
            min_new_tokens=self.min_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            top_k=-1 if everything else self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(self.logit_bias),
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            grammar=self.grammar,
        )

    def resolve_all(
        self, prompt_tokens: int, context_tokens: int, vocab_size: int, *, seed: int
    ) -> list[Sampling]:
        """Return what the scheduler needs for each of the `n` choices; see `resolve`.

        They differ in their seeds alone, and share all the rest.
        """
        first = self.resolve(prompt_tokens, context_tokens, vocab_size, seed=seed, index=0)
        own = seed if self.seed is None else self.seed
        others = (_seed_of_choice(own, index) for index in range(1, self.n))
        return [first, *(msgspec.structs.replace(first, seed=other) for other in others)]

    def _new_tokens(self, prompt_tokens: int, context_tokens: int) -> int:
        room = context_tokens - prompt_tokens
        if room < 0 or (room == 0 and self.max_new_tokens != 0):
            raise PromptTooLong(
                f"the prompt has {prompt_tokens} tokens; with at least one new token the most is "
                f"{context_tokens - 1}"
            )
        asked = self.min_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        if asked > room:
            raise PromptTooLong(
                f"prompt ({prompt_tokens} tokens) and new tokens ({asked}) exceed "
                f"the context of {context_tokens} tokens"
            )
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        default = room if self.default_new_tokens is None else self.default_new_tokens
        return min(max(default, asked), room)


def _check_lengths(spec: SamplingSpec) -> None:
    _check_int("min_new_tokens", spec.min_new_tokens, 0, MAX_NEW_TOKENS)
    if spec.max_new_tokens is None:
        return
    _check_int("max_new_tokens", spec.max_new_tokens, 0, MAX_NEW_TOKENS)
    if spec.min_new_tokens > spec.max_new_tokens:
        raise BadSampling(
            "min_new_tokens", f"at most max_new_tokens ({spec.max_new_tokens})", spec.min_new_tokens
        )


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        # repr of an int of thousands of digits is an error in Python: never show those.
        shown = value if abs(value) <= _INT64 else "a number of more than 64 bits"
        raise BadSampling(name, f"between {low} and {high}", shown)


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also false for NaN
        # Integers of any size get here, too.
        shown = value if isinstance(value, float) or abs(value) <= _INT64 else "a number too large"
        raise BadSampling(name, f"between {low:g} and {high:g}", shown)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise BadSampling("stop", f"at most {MAX_STOP_STRINGS} strings", f"{len(stop)} strings")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise BadSampling("stop", f"strings of 1 to {MAX_STOP_CHARS} characters", text)


def _check_ids(spec: SamplingSpec, vocab_size: int) -> None:
    if len(spec.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        count = f"{len(spec.stop_token_ids)} ids"
        raise BadSampling("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids", count)
    if len(spec.logit_bias) > MAX_LOGIT_BIAS:
        count = f"{len(spec.logit_bias)} entries"
        raise BadSampling("logit_bias", f"at most {MAX_LOGIT_BIAS} entries", count)
    for token_id in spec.stop_token_ids:
        _check_int("stop_token_ids", token_id, 0, vocab_size - 1)
    for token_id, bias in spec.logit_bias.items():
        _check_int("logit_bias", token_id, 0, vocab_size - 1)
        _check_number("logit_bias", bias, -100.0, 100.0)


def _seed_of_choice(seed: int, index: int) -> int:
    """Return the seed of choice `index` in [0, 2**63): the given one for choice 0, mixed beyond.

    Source: splitmix64 (Steele, Lea and Flood 2014), so that neighbouring seeds and choices share
    no stream.
    """
    mask = (1 << 64) - 1
    if index == 0:
        return seed & (mask >> 1)
    word = (seed + index * 0x9E3779B97F4A7C15) & mask
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return (word ^ (word >> 31)) >> 1
