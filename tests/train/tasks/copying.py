"""Repeating what was said: sentences, lists, and single items of lists."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.tasks.filler import sentences
from tests.train.tasks.thread import ask

_REPEAT = (
    "Repeat: {}", "Repeat this: {}", "Say this again: {}", "Copy this: {}", "Please repeat: {}",
    "Write this again: {}", "Say: {}", 'Repeat "{}"', "Echo: {}",
)  # fmt: skip
_LIST = ("Here is a list: {}.", "The words are: {}.", "List: {}.", "Look at these words: {}.")
_NTH = (
    "What is the {} word?", "What is the {} item?", "Which word is the {} one?",
    "Give me the {} item.", "Which item is {}?",
)  # fmt: skip
_ALL = ("Repeat the list.", "Say all the words.", "Write the list again.")
_BACK = ("Say them in reverse order.", "Write the list in reverse order.", "Now backwards.")
_TIMES = ("Say {} {} times.", "Write {} {} times.", "Repeat {} {} times.")


@dataclass(slots=True)
class Copying:
    """The thread: repeats texts and lists; questions about a list go on about the same one."""

    rng: Random
    items: tuple[str, ...] = ()
    shown: str = ""

    def step(self, at: int) -> Exchange:
        """Return something to repeat, and it repeated."""
        del at
        form = self.rng.random()
        if self.items and form < 0.45:
            return self._of_list("")
        if form < 0.7:
            self.items = tuple(_items(self.rng))
            self.shown = self.rng.choice(_LIST).format(", ".join(self.items))
            return self._of_list(self.shown + " ")
        if form < 0.8:
            return self._times()
        return self._repeat()

    def _repeat(self) -> Exchange:
        rng = self.rng
        self.items = ()
        form = rng.random()
        if form < 0.5:
            text = sentences(rng, 1)[0]
        elif form < 0.8:
            text = " ".join(_items(rng))
        else:
            text = " ".join(sentences(rng, rng.randint(2, 3)))
        return _exact(
            rng.choice(_REPEAT).format(text), text, "The user wants a text repeated.", text
        )

    def _times(self) -> Exchange:
        rng = self.rng
        self.items = ()
        word, count = _word(rng), rng.randint(2, 6)
        said = rng.choice((str(count), lexicon.NUMBER_WORDS[count]))
        question = rng.choice(_TIMES).format(word, said)
        think = f"The user wants {word} {lexicon.NUMBER_WORDS[count]} times."
        return _exact(question, " ".join([word] * count), think, "")

    def _of_list(self, before: str) -> Exchange:
        rng, items = self.rng, self.items
        form = rng.random()
        if form < 0.2:
            answer = ", ".join(items)
            return _exact(before + rng.choice(_ALL), answer, "The user wants the list.", self.shown)
        if form < 0.32 and len(items) <= 6:
            answer = ", ".join(reversed(items))
            return _exact(before + rng.choice(_BACK), answer, "The list backwards.", self.shown)
        if form < 0.5:
            k = rng.randrange(len(items) - 1)
            if items.count(items[k]) == 1:
                question = f"Which word comes after {items[k]}?"
                return _exact(
                    before + question, items[k + 1], f"I look for {items[k]}.", self.shown
                )
        place = rng.randrange(min(len(items), 8))
        name = lexicon.ORDINALS[place]
        if rng.random() < 0.25:
            place, name = len(items) - 1, "last"
        think = f"The user wants the {name} item."
        return _exact(before + rng.choice(_NTH).format(name), items[place], think, self.shown)


def _items(rng: Random) -> list[str]:
    count = rng.randint(2, 10)
    form = rng.random()
    if form < 0.5:
        return [rng.choice(lexicon.PLAIN) for _ in range(count)]
    if form < 0.75:
        words = rng.choice((lexicon.NAMES, lexicon.CITIES, lexicon.FOODS, lexicon.ANIMALS))
        return rng.sample(words, min(count, len(words)))
    if form < 0.87:
        return [str(rng.randrange(10 ** rng.randint(1, 4))) for _ in range(count)]
    return [_word(rng) for _ in range(count)]


def _word(rng: Random) -> str:
    form = rng.random()
    if form < 0.5:
        return rng.choice(lexicon.PLAIN)
    return lexicon.made_up(rng) if form < 0.8 else lexicon.code(rng)


def _exact(question: str, answer: str, think: str, source: str) -> Exchange:
    return ask(
        question, answer, think=think, check=Check("copying", "exact", answer, source=source)
    )
