"""Worlds and events from a seed."""

from collections.abc import Iterator
from random import Random

import msgspec

from tests.simulation import script as happen
from tests.simulation.client import EVERYTHING, SHARES
from tests.simulation.engine import expected_of
from tests.simulation.script import AnyEvent, WorldSpec

# Units of (page, SWA page, window, state).
_UNITS = (
    *((8, 4, 8, True), (8, 4, 8, True), (4, 4, 8, True), (16, 4, 10, True), (8, 8, 16, True)),
    *((8, 4, 8, False), (8, 8, 0, False), (4, 4, 0, True)),
)
_LETTERS = range(97, 121)
_REMEMBERED = 12


def draw_world(seed: int) -> WorldSpec:
    """Return the world of a seed: mostly too small for what happens in it."""
    draw = Random(f"world {seed}")
    page, swa_page, window, state = draw.choice(_UNITS)
    tokens = draw.choice([100, 160, 240, 400, 800])
    rows = draw.randint(1, 5)
    row_pages = 2 * -(-window // swa_page)
    live = state and draw.random() < 0.3
    return WorldSpec(
        replicas=draw.choice([1, 1, 1, 2]),
        page=page,
        swa_page=swa_page,
        window=window,
        state=state,
        live_states=live,
        pages=tokens // page + 4,
        swa_pages=draw.randint(1, 3) * row_pages + draw.randint(0, 12),
        states=draw.randint(2, 9),
        rows=rows,
        chunk=draw.choice([1, 5, 16, 16, 40, -1]),
        replay=draw.random() < 0.5,
        overlap=draw.random() < 0.75,
        reuse=draw.random() < 0.95,
        policy=draw.choice(["lpm", "lpm", "fcfs"]),
        turns=draw.random() < 0.7,
        branch_min=draw.choice([1, 4, 8, 64]),
        waypoint=draw.choice([0, 0, 16]),
        quota=draw.choice([None, None, None, tokens // 3]),
        max_queued=draw.choice([64, 64, 64, 3]),
        max_queued_tokens=draw.choice([None, None, tokens]),
        aging_s=draw.choice([0.0, 0.05]),
        queue_timeout_s=draw.choice([None, None, 0.1]),
        request_timeout_s=draw.choice([None, None, 0.3]),
        unread=draw.choice([EVERYTHING, 20]),
        copy_pages=draw.choice([1000, 2]),
    )


class Mood:
    """How often what happens in one life; per arrival."""

    def __init__(self, draw: Random) -> None:
        self.gap_s = draw.choice([0.002, 0.006, 0.012, 0.025])
        self.burst = draw.choice([0.0, 0.5, 0.9])
        self.pause = draw.choice([0.0, 0.02, 0.1])
        self.flood = draw.choice([0.0, 0.0, 0.7])
        self.priorities = draw.choice([(0,), (0,), (0, 0, 1, 5)])
        self.namespaces = draw.choice([("",), ("", "a"), ("a", "b", "c")])
        faults = draw.choice([0.0, 0.3, 1.0, 1.0])
        self.chances = {
            name: faults * most * draw.choice([0, 1, 1])
            for name, most in (
                *(("bad", 0.12), ("rot", 0.03), ("room", 0.08), ("stall", 0.03)),
                *(("api", 0.03), ("dies", 0.004), ("api dies", 0.002), ("abort", 0.12)),
                *(("flush", 0.02), ("ask", 0.02)),
            )
        }


class Drawn:
    """Endless events of one seed, in order of time."""

    def __init__(self, seed: int) -> None:
        self.world = draw_world(seed)
        self.expected = expected_of(self.world)
        self._context = self.expected.context
        self._draw = Random(f"events {seed}")
        self._mood = Mood(self._draw)
        self._storms = Random(f"storm {seed}")
        self._storm = self._storms.choice([0.0, 0.6])
        self._systems = [self._words(self._length(4)) for _ in range(3)]
        self._histories: list[list[int]] = []
        self._at_s = 1.0
        self._key = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        while True:
            yield self._arrive()
            yield from self._faults()
            self._wait()

    def _words(self, count: int) -> list[int]:
        return self._draw.choices(_LETTERS, k=count)

    def _length(self, part: int) -> int:
        return self._draw.randint(1, max(1, self._context // part))

    def _chance(self, name: str) -> bool:
        return self._draw.random() < self._mood.chances[name]

    def _wait(self) -> None:
        draw, mood = self._draw, self._mood
        if draw.random() < mood.pause:
            self._at_s += 0.3
        if draw.random() >= mood.burst:
            self._at_s += draw.expovariate(1 / mood.gap_s)

    # --- arrivals

    def _prompt(self) -> list[int]:
        draw = self._draw
        kind = draw.choice(["new", "turn", "turn", "turn", "again", "edit", "random"])
        known = draw.choice(self._histories) if self._histories else []
        match kind if known else "new":
            case "turn":
                return [*known, *self._words(draw.choice([1, 2, 5, 9]))]
            case "again":
                return [*known]
            case "edit":
                return [*known[: draw.randint(1, len(known))], *self._words(draw.randint(1, 9))]
            case "random":
                return self._words(self._length(2))
            case _:
                return [*draw.choice(self._systems), *self._words(draw.choice([1, 2, 9, 20]))]

    def _arrive(self) -> happen.Arrive:
        draw, mood, world = self._draw, self._mood, self.world
        self._key += 1
        prompt = self._prompt()
        new = draw.choice([0, 1, 1, 2, 5, 12, 12, 30, None])
        most = self._context - (new or 1)
        if len(prompt) > most and draw.random() < 0.98:
            prompt = prompt[: max(1, most // 2)]
        if new is None and draw.random() < 0.8:
            new = 40
        odd = draw.random()
        call = happen.Arrive(
            at=self._at_s,
            key=self._key,
            prompt="".join(map(chr, prompt)),
            new=new,
            least=draw.choice([0, 0, 0, min(3, new or 0)]),
            n=draw.choice([1, 1, 1, 1, 2, 3]) if world.rows > 1 else 1,
            temperature=draw.choice([0.0, 0.0, 1.0]),
            stop=(self._stop(),) if draw.random() < 0.15 else (),
            stop_ids=(draw.choice(_LETTERS),) if draw.random() < 0.2 else (),
            ignore_eos=draw.random() < 0.2,
            namespace=draw.choice(mood.namespaces),
            priority=draw.choice(mood.priorities),
            share=0 if draw.random() < mood.flood else draw.randrange(len(SHARES)),
            timeout_s=draw.choice([0.01, 0.1]) if odd < 0.05 else None,
            stream=draw.random() < 0.8,
            logprobs=draw.random() < 0.15,
            boundaries=(draw.randint(1, len(prompt)),) if draw.random() < 0.2 else (),
            background=draw.random() < 0.04,
            reader=draw.choice(["read"] * 9 + ["slow", "leave", "drop", "never"]),
            deltas=draw.randint(1, 4),
            patience_s=draw.choice([0.004, 0.03, 0.1]),
        )
        if self._storms.random() < self._storm:
            call = self._endless(call)
        self._remember(call)
        return call

    def _endless(self, call: happen.Arrive) -> happen.Arrive:
        """Return a call whose answer takes half a pool: of two, one has to yield."""
        most = max(1, self._context // 4)
        return msgspec.structs.replace(
            call,
            prompt=call.prompt[:most],
            new=self._context // 2,
            stop=(),
            stop_ids=(),
            ignore_eos=True,
            boundaries=(),
            reader="read",
        )

    def _stop(self) -> str:
        return "".join(chr(c) for c in self._words(self._draw.choice([1, 1, 2])))

    def _remember(self, call: happen.Arrive) -> None:
        asked = call.new if call.new is not None else 1
        if len(call.prompt) + max(asked, 1) > self._context:
            return
        answer = self.expected.answer(call, 0)
        history = [*call.tokens, *answer.tokens]
        if len(history) < self._context - 2:
            self._histories.append(history)
        del self._histories[:-_REMEMBERED]

    # --- faults

    def _faults(self) -> Iterator[AnyEvent]:
        draw, at = self._draw, self._at_s + self._draw.expovariate(1 / 0.004)
        self._at_s = max(self._at_s, at) if draw.random() < 0.3 else self._at_s
        at = self._at_s
        if self._chance("bad"):
            kind = draw.choice(["chunk", "decode", "mixed", "replay"])
            yield happen.Bad(at=at, kind=kind, row=draw.randrange(8))
        if self._chance("rot"):
            yield happen.Rot(at=at, draw=draw.randrange(1 << 20))
        if self._chance("room"):
            yield happen.NoRoom(at=at, calls=draw.randint(1, 4), points=draw.random() < 0.5)
        if self._chance("stall"):
            yield happen.Stall(at=at, seconds=draw.choice([0.02, 0.1]))
        if self._chance("api"):
            yield happen.ApiStall(at=at, seconds=draw.choice([0.004, 0.05]))
        if self._chance("abort"):
            yield happen.Abort(at=at, key=max(1, self._key - draw.randrange(6)))
        if self._chance("flush"):
            yield happen.Flush(at=at)
        if self._chance("ask"):
            yield happen.Question(at=at)
        if self._chance("dies"):
            yield happen.SchedulerDies(at=at, seconds=draw.choice([0.01, 0.1]))
        if self._chance("api dies"):
            yield happen.ApiDies(at=at)
