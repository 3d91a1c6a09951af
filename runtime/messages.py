"""Every message between the API process and the scheduler: two closed unions of tagged structs.

Encoding is MessagePack by msgspec. Token ids travel as little-endian int32 bytes, so that a
prompt costs a copy, not a loop. `request_id` is made by the API process; the client's own
label never leaves it.
"""

from typing import Literal

import msgspec
import numpy as np

from runtime.cache_messages import CacheView, GetCache
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from runtime.rank_memory import RankMemory
from runtime.share import Share, ShareState

FinishType = Literal["stop", "length", "abort", "error"]
RefusalReason = Literal[
    "too_long", "queue_full", "bad_request", "grammar", "queue_timeout", "timeout"
]


# In a structural tag of ours: where in the request a part comes from, for what is wrong with it.
PLACE = "place"

GrammarKind = Literal["json_object", "json_schema", "regex", "ebnf", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an output must be, and from where on.

    text     the schema or structural tag as JSON, the pattern, the EBNF; "" for json_object
    after    a token id: the output is free, but does not end, up to and with this token
    may_end  it may end before `after` has come
    barred   a token id that must not come before `after`, either; None: there is none
    calls    a structural tag as JSON, which the output may follow instead; "": there is none
    field    the client's field that asks for it, which a refusal names
    """

    kind: GrammarKind
    text: str = ""
    after: int | None = None
    may_end: bool = False
    barred: int | None = None
    calls: str = ""
    field: str | None = None


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling of one request, already validated and resolved.

    max_new_tokens      0 computes (and caches) the prompt only
    top_k               -1 keeps all
    logit_bias          token id -> added to the logit
    seed                random numbers depend on (seed, position) only; always set here
    stop_token_ids      end the request, besides the model's own end tokens
    ignore_eos          the model's own end tokens do not end the request
    grammar             what the output must be; its end ends the request, whatever min_new_tokens
                        and ignore_eos say
    """

    max_new_tokens: int
    seed: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None


class Logprobs(msgspec.Struct, frozen=True):
    """Which log-probabilities a request wants.

    start      first prompt position reported; len(prompt) or more: none of the prompt.
               Position `start` itself has no value (None), `start + 1` on have one, which
               needs the logits at `start`: at most `start` tokens come from the cache.
    top        alternatives per position, 0 for none
    token_ids  these tokens' log-probabilities at every position
    """

    start: int
    top: int = 0
    token_ids: tuple[int, ...] = ()


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Compute a prompt and sample from it.

    input_ids   little-endian int32
    namespace   cache namespace; nothing matches across two of them
    priority    higher goes first
    stream      False: one reply when finished, carrying all the tokens; with log-probabilities
                several, so that none is long
    background  no client's: prefilled for what may come, and counted apart
    boundaries  positions inside the prompt where other prompts are likely to part from it: behind
                system prompt and tools, and before the last turn
    share       whose request it is
    timeout_s   seconds from its arrival after which it is ended; None: the server's own limit
    traced      tell when each chunk of its prompt was computed
    """

    request_id: int
    input_ids: bytes
    sampling: Sampling
    logprobs: Logprobs | None = None
    namespace: str = ""
    priority: int = 0
    stream: bool = True
    background: bool = False
    boundaries: tuple[int, ...] = ()
    share: Share = Share()
    timeout_s: float | None = None
    traced: bool = False


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests and free what they hold. Unknown ids are ignored.

    Those that do not stream are replied to with the tokens there are, the others are not.
    """

    request_ids: list[int]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End these requests as finished: their text has come to a stop string.

    Otherwise as `Abort`, but never replied to.
    """

    request_ids: list[int]


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Empty the cache; refused while requests run. Answered by `Flushed`."""

    call_id: int


class GetState(msgspec.Struct, frozen=True, tag=True):
    """Ask for counters and pool usage. Answered by `State`."""

    call_id: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the scheduler process; requests still running are dropped."""


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of one request.

    token_ids          new tokens since the last Output
    finish             set on the last Output
    matched_stop       the token id that ended it, for finish "stop"
    error              text for finish "error" or "abort"
    prompt_tokens, cached_tokens   set on the first Output
    queue_s, prefill_s seconds without a row and with one until the prompt was computed; likewise
    decode_s           seconds from then to the finish; set with "stop" and "length"
    chunks             of a traced request, on the first Output: how far each chunk of the prompt
                       went, and the seconds from the request's arrival until it was computed
    grammar_s          on the first Output: seconds until its grammar was compiled; 0 if it was
                       before, or there is none
    prompt_logprobs    set once, on the first Output that has any token or the finish
    logprobs           of `token_ids`
    """

    request_id: int
    token_ids: list[int] = []
    finish: FinishType | None = None
    matched_stop: int | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    chunks: list[tuple[int, float]] = []
    grammar_s: float = 0.0
    prompt_logprobs: PromptLogprobs | None = None
    logprobs: TokenLogprobs | None = None


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What one step produced, for all requests that have news."""

    items: list[Output]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request that was not admitted: its only reply.

    reason   "too_long": can never fit; "queue_full": try again; "bad_request": malformed;
             "grammar": there can be no output of its grammar; "queue_timeout": no row was free in
             time, try again; "timeout": the time for all of it was over before its first token
    param    the client's field that is to blame, where that is known
    retry_after_s   whole seconds until it may go better, where that is known
    """

    request_id: int
    reason: RefusalReason
    message: str
    param: str | None = None
    retry_after_s: int | None = None


class Queued(msgspec.Struct, frozen=True, tag=True):
    """What waits, before a step: sent when it has changed, where `--max-queued-tokens` is given.

    received  `Generate` messages read so far
    tokens    that the prefills of waiting requests will compute, as far as is known
    """

    received: int
    tokens: int


class Flushed(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Flush`."""

    call_id: int
    done: bool
    message: str


class Histogram(msgspec.Struct, frozen=True):
    """How often each of some durations in seconds was seen.

    counts  one for each bound, of what is no greater and above the bound before; then of the rest
    """

    bounds: list[float]
    counts: list[int]
    sum_s: float


class ReplicaState(msgspec.Struct, frozen=True):
    """Counters and gauges of one replica, as in `State`."""

    counters: dict[str, float]
    gauges: dict[str, float]


class State(msgspec.Struct, frozen=True, tag=True):
    """Answer to `GetState`, and sent unasked every half second: a heartbeat.

    counters     monotonic counts since start (requests, tokens, evictions ...)
    gauges       current values (running, waiting, pages used per pool ...)
    step_age_s   how long the step in progress has taken; 0 when idle or between steps
    loop_age_s   how long since the loop last turned, time inside a forward pass not counted
    namespaces   tokens that the largest cache namespaces hold, by digest of their names
    durations    how long evictions, compilations of grammars ... took, since start
    shares       requests of API keys by name, and of all addresses under `ADDRESS_MARK`
    queue_s      seconds until all that wait have rows, at the rate of late
    profiling    a profile runs or is being written: the process may stall for that
    replicas     of each replica where there are several, whose sums counters and gauges are then;
                 shares are of all units together
    """

    call_id: int
    counters: dict[str, float]
    gauges: dict[str, float]
    step_age_s: float = 0.0
    loop_age_s: float = 0.0
    namespaces: dict[str, float] = {}
    durations: dict[str, Histogram] = {}
    profiling: bool = False
    shares: dict[str, ShareState] = {}
    queue_s: float = 0.0
    replicas: list[ReplicaState] = []


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The scheduler's first message: weights are loaded, pools exist.

    context_tokens   longest sequence served (prompt and output)
    eos_token_ids    the model's own end tokens
    info             facts for /server_info (pool sizes, backends, dtypes ...), JSON values
    memory           of each rank's device
    """

    context_tokens: int
    vocab_size: int
    eos_token_ids: list[int]
    info: dict[str, str | int | float | bool]
    memory: list[RankMemory] = []


ToScheduler = (
    Generate | Abort | Stop | Flush | GetState | GetCache | StartProfile | StopProfile | Shutdown
)
FromScheduler = Outputs | Refused | Queued | Flushed | State | CacheView | Profiled | Ready


def pack_ids(ids: "list[int] | np.ndarray") -> bytes:
    """Return token ids as little-endian int32 bytes."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """Return the int32 array behind `data`; read-only, no copy."""
    return np.frombuffer(data, dtype="<i4")
