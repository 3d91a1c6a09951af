"""Random workloads: a scheduler's sizes and settings, and requests of every kind."""

import random
from dataclasses import dataclass

from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from runtime.messages import Generate, Grammar, Logprobs, Sampling, pack_ids
from runtime.scheduler.residency import ResumePolicy
from tests.testing.token_runner import expected_output

VOCAB = 50
END = VOCAB - 1  # the model's end token, and the grammars'
EIGHT = TreeSpec(8, 4, 8)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    step    sent when so many steps were launched, or earlier when nothing is left to do
    leaves  steps after that until the client has gone; None: it stays
    stops   it leaves because of a stop string, and is not aborted
    fails   steps after that until its grammar fails; None: it does not
    """

    step: int
    message: Generate
    leaves: int | None = None
    stops: bool = False
    fails: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """All that one scheduler is built with, and is asked.

    slow        steps with chunks take so long that messages come while they run
    fail_token  a row that samples it has logits that are not finite
    """

    seed: int
    spec: TreeSpec
    sizes: PoolSizes
    rows: int
    chunk: int
    policy: str
    resume: ResumePolicy
    replay: int | None
    quota: int | None
    reuse: bool
    overlap: bool
    logit_rows: int
    context: int | None
    samples: int | None
    slow: bool
    fail_token: int | None
    asks: tuple[Ask, ...]


def workload(seed: int) -> Workload:
    """Return a workload; the same for the same seed.

    Of three, one has too few pages, so that rows are retracted, one long prompts and few resume
    points, so that they are replayed, and one a little of everything.
    """
    draw = random.Random(seed)
    kind = ("pages", "prompts", "all")[seed % 3]
    spec = draw.choice(
        [TreeSpec(8, 4, 8), TreeSpec(8, 4, 8), TreeSpec(4, 4, 8), TreeSpec(16, 4, 10)]
    )
    rows = draw.choice([2, 4, 6] if kind == "pages" else [1, 2, 3, 4, 6])
    tokens = draw.choice({"pages": [40, 56], "prompts": [160, 400], "all": [72, 400]}[kind])
    pages = div_ceil(tokens, spec.page_size) + 1
    # Waypoints take a sixteenth.
    few = draw.randint(2, 2 * rows + 4)
    rings = draw.choice(
        {"pages": [2 * rows + 4], "prompts": [few, few, 48], "all": [few, 48]}[kind]
    )
    swa = draw.choice([2, rows, rows + 4, 20]) * spec.row_swa_pages + draw.randint(0, 9)
    return Workload(
        seed,
        spec,
        PoolSizes(pages, swa, rings),
        rows,
        draw.choice([3, 5, 8, 16, 24, -1]),
        draw.choice(["lpm", "lpm", "fcfs"]),
        _resume(draw),
        replay=draw.choice([None, spec.window + 4, 2 * spec.window]) if kind != "pages" else None,
        quota=draw.choice([None, None, None, 40]),
        reuse=draw.random() < 0.93,
        overlap=draw.random() < 0.8,
        logit_rows=draw.choice([4096, 3]),
        context=draw.choice([None, None, 40]),
        samples=draw.choice([None, None, 3]),
        slow=draw.random() < 0.3,
        fail_token=draw.randrange(VOCAB) if draw.random() < 0.1 else None,
        asks=_asks(draw, kind, context=pages * spec.page_size),
    )


def _resume(draw: random.Random) -> ResumePolicy:
    return ResumePolicy(
        prompt_end=draw.random() < 0.8,
        request_end=draw.random() < 0.8,
        branch_min_tokens=draw.choice([1, 4, 12, 64]),
        every_pages=draw.choice([0, 0, 1]),
        waypoint_tokens=draw.choice([0, 8, 12, 2048]),
    )


def _asks(draw: random.Random, kind: str, *, context: int) -> tuple[Ask, ...]:
    """Return requests that share prefixes, answers of one another included."""
    longest, most_new = {"pages": (8, 26), "prompts": (44, 8), "all": (24, 14)}[kind]
    texts = [draw.choices(range(VOCAB), k=draw.randint(longest // 2, longest)) for _ in range(2)]
    asks: list[Ask] = []
    # Bursts that wait for one another, or a few at a time.
    pause, step = draw.choice([0, 1, 3]), 0
    while len(asks) < 10:
        step += draw.randint(0, pause)
        new = draw.choice([0, 1, *(draw.randint(2, most_new) for _ in range(8))])
        prompt = _prompt(draw, texts)[: min(60, context - new)]
        said = expected_output(prompt, new, VOCAB)
        texts.append([*prompt, *said[: draw.randint(0, new)]])
        forks = draw.choice([1, 1, 1, 2, 3])
        # One prompt for all forks; apart from it they may differ.
        for _ in range(forks):
            asks.append(_ask(draw, len(asks) + 1, step, prompt, said, forks=forks))
    return tuple(asks)


def _prompt(draw: random.Random, texts: list[list[int]]) -> list[int]:
    base = draw.choice(texts)
    if draw.random() < 0.5:
        return [*base, *draw.choices(range(VOCAB), k=draw.randint(0, 6))]
    return [*base[: draw.randint(1, len(base))], *draw.choices(range(VOCAB), k=2)]


def _ask(
    draw: random.Random, number: int, step: int, prompt: list[int], said: list[int], *, forks: int
) -> Ask:
    grammar = _grammar(draw, said)
    logprobs = None
    if draw.random() < 0.15:
        start = draw.randrange(len(prompt) + 1)
        logprobs = Logprobs(start, draw.choice([0, 2]), draw.choice([(), (3, 4)]))
    message = Generate(
        number,
        pack_ids(prompt),
        _sampling(draw, said, grammar, random_draws=forks > 1),
        logprobs=logprobs,
        namespace=draw.choice(["", "", "", "b"]) if forks == 1 else "",
        priority=draw.choice([0, 0, 0, 1, -1]),
        stream=draw.random() < 0.7,
        background=draw.random() < 0.05,
        boundaries=tuple({draw.randint(1, len(prompt))}) if draw.random() < 0.3 else (),
    )
    leaves = draw.randint(0, 9) if draw.random() < 0.15 else None
    fails = draw.randint(0, 9) if grammar is not None and draw.random() < 0.15 else None
    return Ask(step, message, leaves, draw.random() < 0.4, fails)


def _grammar(draw: random.Random, said: list[int]) -> Grammar | None:
    if not said or draw.random() > 0.2:
        return None
    after = draw.choice([None, draw.choice(said)])
    return Grammar("regex", "a", after=after, may_end=after is not None)


def _sampling(
    draw: random.Random, said: list[int], grammar: Grammar | None, *, random_draws: bool
) -> Sampling:
    penalised = draw.random() < 0.2
    return Sampling(
        max_new_tokens=len(said),
        seed=draw.randrange(1 << 30),
        min_new_tokens=draw.choice([0, 0, 0, min(4, len(said))]),
        temperature=1.0 if random_draws or draw.random() < 0.2 else 0.0,
        presence_penalty=draw.choice([0.0, 1.0]) if penalised else 0.0,
        frequency_penalty=draw.choice([0.0, 2.0]) if penalised else 0.0,
        repetition_penalty=draw.choice([1.0, 2.0]) if penalised else 1.0,
        stop_token_ids=(draw.choice(said),) if said and draw.random() < 0.2 else (),
        ignore_eos=draw.random() < 0.6,
        grammar=grammar,
    )
