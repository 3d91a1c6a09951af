"""Random prompts as clients of a prefix cache send them, the same ones for the same seed."""

import random
from dataclasses import dataclass, field

VOCAB = range(10, 500)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    kind         how the prompt came about
    choices      how many answers are wanted
    temperature  0: greedy
    """

    kind: str
    prompt: list[int]
    new_tokens: int
    salt: str
    choices: int = 1
    temperature: float = 0.0
    seed: int = 0


def shared_systems(seed: int, lengths: tuple[int, ...] = (290, 130, 513, 768)) -> list[list[int]]:
    """Return beginnings of these lengths."""
    draw = random.Random(seed)
    return [draw.choices(VOCAB, k=length) for length in lengths]


@dataclass
class Traffic:
    """Draws one request after the other; what was answered becomes the history of later ones.

    systems      beginnings that conversations share; `shared_systems` makes some
    most_tokens  no prompt is longer; one that would be starts over
    salts        cache namespaces
    most_new     most new tokens of a request
    """

    draw: random.Random
    systems: list[list[int]]
    most_tokens: int = 1400
    salts: tuple[str, ...] = ("a", "b", "c")
    most_new: int = 24
    _histories: dict[str, list[tuple[Ask, list[int]]]] = field(init=False)

    def __post_init__(self) -> None:
        self._histories = {salt: [] for salt in self.salts}

    def words(self, count: int) -> list[int]:
        """Return random token ids."""
        return self.draw.choices(VOCAB, k=count)

    def next(self) -> Ask:
        """Return the next request."""
        draw = self.draw
        salt = draw.choice(self.salts)
        known = self._histories[salt]
        kind = draw.choice(["new", "turn", "turn", "turn", "again", "edit", "fork"])
        if not known:
            kind = "new"
        # Mostly what was answered lately, as people do.
        ask, answer = known[-1 - min(int(draw.expovariate(0.4)), len(known) - 1)] if known else _NO
        more = self.words(draw.choice([1, 3, 40, 63, 64, 90, 200]))
        match kind:
            case "turn":
                prompt = [*ask.prompt, *answer, *more]
            case "again":
                prompt = ask.prompt
            case "edit":
                prompt = [*ask.prompt[: draw.randint(1, len(ask.prompt))], *more]
            case "fork":
                prompt = [*ask.prompt, *answer]
            case _:
                prompt = [*draw.choice(self.systems), *more]
        if len(prompt) > self.most_tokens:
            kind, prompt = "new", [*draw.choice(self.systems), *more]
        return Ask(
            kind,
            prompt,
            draw.randint(1, self.most_new),
            salt,
            choices=draw.randint(2, 4) if kind == "fork" else 1,
            temperature=draw.choice([0.0, 0.0, 1.0]),
            seed=draw.randrange(1 << 40),
        )

    def answered(self, ask: Ask, answer: list[int]) -> None:
        """Let later requests build on this one."""
        self._histories[ask.salt].append((ask, answer))


_NO: tuple[Ask, list[int]] = (Ask("new", [], 1, ""), [])
