"""A simulated server: the real residency and tree, and steps that take the time of a model.

    submit -> waiting -> prefills -> decoding -> done          a request
    submit, step_ended                                         what the loop calls

A step takes chunks of the oldest prompts and one token of each decoding row. A prompt is looked up
when its first chunk is planned, and is in the tree as soon as its last one is: at the beginning of
the step that computes it, where a real server publishes at its end. So a prompt in the same step
may reuse it, which stands for a real server's waiting for a prefix that is being computed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.bench.cache.served import Row, Served
from tests.bench.replicas.step_model import StepModel
from tests.bench.replicas.trace import PAGE, Call

# Of the cache benchmark's setting: SGLang's ratio of its two pools, whose bytes are given.
_PAGES_PER_SWA_PAGE = 10


def cache_of(tokens: int, rows: int) -> Served:
    """Return a cache with the bytes of so many tokens, as `mem_cache/README.md` counts them."""
    pages = tokens // PAGE
    return Served(pages, max(16, pages // _PAGES_PER_SWA_PAGE), max_running=rows)


@dataclass(slots=True, eq=False)
class Job:
    """A request on a server.

    tokens     prompt and answer
    planned    prompt tokens that are cached or in a step
    left       tokens of the answer still to decode
    first_s    when its first token came
    cached     prompt tokens that were not computed
    """

    call: Call
    sent_s: float
    tokens: np.ndarray
    row: Row | None = None
    planned: int = 0
    left: int = 0
    first_s: float = -1.0
    ended_s: float = -1.0
    cached: int = 0


@dataclass(slots=True)
class Step:
    """A step in flight, or several that only decode.

    prompts  whose last chunk is in it
    count    decode steps, 1 with a chunk
    each_s   seconds of each
    """

    start_s: float
    each_s: float
    prompts: list[Job]
    count: int = 1

    @property
    def end_s(self) -> float:
        """When the last of them ends."""
        return self.start_s + self.count * self.each_s


@dataclass(eq=False)
class Server:
    """One replica.

    cache      its own, or one that several share
    answered, ended  are called with a job when its first and its last token come
    """

    cache: Served
    model: StepModel
    answered: Callable[["Server", Job], None]
    ended: Callable[["Server", Job], None]
    waiting: deque[Job] = field(default_factory=deque[Job])
    prefills: deque[Job] = field(default_factory=deque[Job])
    decoding: list[Job] = field(default_factory=list[Job])
    step: Step | None = None

    @property
    def running(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.prefills) + len(self.decoding)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens still to compute, as far as look-ups tell (SGLang's /v1/loads)."""
        left = sum(job.call.prompt_tokens - job.planned for job in self.prefills)
        for job in self.waiting:
            prompt = job.call.prompt_tokens
            left += prompt - self.cached(job.tokens[:prompt])
        return left

    def cached(self, prompt: np.ndarray) -> int:
        """Return how much of a prompt its whole pages hold, which is what its events tell."""
        return self.cache.residency.cache.peek(prompt).full_tokens // PAGE * PAGE

    def submit(self, job: Job, now_s: float) -> None:
        """Take a request. Steps that only decode end with the one that runs now."""
        self.waiting.append(job)
        step = self.step
        if step is None:
            self.plan(now_s)
        elif not step.prompts and step.count > 1:
            step.count = min(step.count, int((now_s - step.start_s) / step.each_s) + 1)

    def step_ended(self) -> None:
        """Take in the step in flight, whose time is over, and plan the next one."""
        step = self.step
        assert step is not None
        now_s, self.step = step.end_s, None
        ended = [job for job in self.decoding if job.left <= step.count]
        for job in self.decoding:
            job.left -= step.count
        self.decoding = [job for job in self.decoding if job.left > 0]
        for job in step.prompts:
            job.first_s = now_s
            self.answered(self, job)
            job.left = job.call.output_tokens - 1 if self.model.decodes else 0
            (self.decoding if job.left else ended).append(job)
        for job in ended:
            self._end(job, now_s)
        self.plan(now_s)

    def plan(self, now_s: float) -> None:
        """Begin the next step, if there is anything to compute."""
        rows, tokens, prompts = len(self.decoding), 0, list[Job]()
        while tokens < self.model.chunk_tokens and (job := self._next_prefill()) is not None:
            prompt = job.call.prompt_tokens
            count = min(self.model.chunk_tokens - tokens, prompt - job.planned)
            tokens, job.planned = tokens + count, job.planned + count
            assert job.row is not None
            self.cache.alloc(job.row, job.planned)
            self.cache.insert(job.row, job.planned, False)
            if job.planned == prompt:
                prompts.append(self.prefills.popleft())
        if tokens:
            self.step = Step(now_s, self.model.step_s(tokens, rows), prompts)
        elif rows:
            count = min(job.left for job in self.decoding)
            self.step = Step(now_s, self.model.decode_s(rows), [], count)

    def _next_prefill(self) -> Job | None:
        if not self.prefills:
            job = self.waiting[0] if self.waiting else None
            if job is None or not self._admit(job):
                return None
            self.prefills.append(self.waiting.popleft())
        return self.prefills[0]

    def _admit(self, job: Job) -> bool:
        """Look a request up and give it a row, if all answers keep room for their last token."""
        residency = self.cache.residency
        if len(self.decoding) + len(self.prefills) >= self.model.rows or not residency.has_row():
            return False
        row = self.cache.match(job.tokens, job.call.prompt_tokens)
        owed = sum(-(-other.left // PAGE) + 1 for other in self.decoding)
        if not self.cache.try_lock(row, reserve_pages=owed + job.call.output_tokens // PAGE + 1):
            if residency.rows_used == 0:
                raise ValueError(f"request {job.call.number} is larger than the whole cache")
            return False
        job.row, job.planned, job.cached = row, row.hit, row.hit
        return True

    def _end(self, job: Job, now_s: float) -> None:
        """Put the answer into the tree, and give back what the request holds."""
        assert job.row is not None
        job.row.toks = job.tokens
        end = len(job.tokens) if self.model.decodes else job.call.prompt_tokens
        if end > job.call.prompt_tokens:
            self.cache.alloc(job.row, end, decode=True)
        self.cache.insert(job.row, end, True)
        self.cache.unlock(job.row)
        job.ended_s, job.row, job.tokens = now_s, None, job.tokens[:0]
        self.ended(self, job)
