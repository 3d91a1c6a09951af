"""Prose that says nothing anyone asks for: what long contexts are filled with.

It names no person and states no value, so that it never contradicts a fact.
"""

from random import Random
from types import MappingProxyType

from tests.train import lexicon
from tests.train.dialogue import Exchange, Turn
from tests.train.pattern import Pattern

_LISTS = {
    "adj": lexicon.ADJECTIVES,
    "noun": lexicon.NOUNS,
    "animal": lexicon.ANIMALS,
    "food": lexicon.FOODS,
    "drink": lexicon.DRINKS,
    "thing": lexicon.THINGS,
    "room": lexicon.ROOMS,
    "job": lexicon.JOBS,
    "colour": lexicon.COLOURS,
    "hobby": lexicon.HOBBIES,
    "tool": lexicon.INSTRUMENTS,
    "stuff": lexicon.MATERIALS,
    "day": lexicon.DAYS,
    "month": lexicon.MONTHS,
    "part": ("morning", "afternoon", "evening", "night"),
    "season": ("spring", "summer", "autumn", "winter"),
    "often": ("often", "never", "always", "sometimes", "rarely", "soon"),
    "many": ("many", "some", "few", "most", "several", "all"),
}
_TEXTS = {
    "weather": (
        "The {part} was {adj} and {adj}, and the wind came from the {noun}.",
        "In {season} the rain {often} falls on the {noun} before the {part}.",
        "{Many} clouds moved slowly over the {noun} and the {noun}.",
        "It was a {adj} {part} in {month}, with snow on the {noun}.",
        "After the storm the air was {adj} and the sky was {colour}.",
        "The sun was {adj}, but the wind near the {noun} was {adj}.",
    ),
    "market": (
        "The market sells {food}, {food} and {adj} {food} on a {day}.",
        "{Many} people came to buy {food} and a {adj} {thing}.",
        "A {job} looked at the {colour} {thing} and did not buy it.",
        "In the {part} the price of {food} is {often} too high.",
        "Near the {room} one can buy a {thing} made of {stuff}.",
        "The {adj} shop had {many} plates, but no {food}.",
    ),
    "travel": (
        "The {adj} road went over the {noun} and down to the {noun}.",
        "{Many} people {often} take the train in the {part}.",
        "The bus stopped at the {room}, then at the {adj} {noun}.",
        "It is a long way from the {noun} to the {adj} {room}.",
        "A ship with {colour} sails came to the {noun} in {month}.",
        "The path behind the {room} goes to a {adj} {noun}.",
    ),
    "kitchen": (
        "The cook made {food} with {food} and a little {food}.",
        "On the table there was {drink}, {food} and a {adj} {thing}.",
        "One should {often} wash the {food} before dinner.",
        "The soup was too {adj}, so the cook added {food}.",
        "A cup of {drink} in the {part} is {adj} and {adj}.",
        "{Many} guests asked for more {food} and {adj} {drink}.",
    ),
    "animals": (
        "The {adj} {animal} sat under the {noun} and watched the {animal}.",
        "A {animal} is {often} {adj}, but a {animal} is not.",
        "In {season} the {animal} sleeps near the {adj} {noun}.",
        "{Many} birds came to the {noun} when the {part} was {adj}.",
        "The {colour} {animal} ran over the {noun} behind the {room}.",
        "A {job} saw a {adj} {animal} close to the {noun}.",
    ),
    "music": (
        "The sound of the {tool} was {adj} and {adj}.",
        "In the {part} a {job} played an old song in the {room}.",
        "{Many} people {often} sing when the {tool} plays.",
        "The {adj} song told of a {noun} and a {colour} {noun}.",
        "A {tool} and a {tool} played in the {adj} hall.",
        "After the concert the {room} was {adj} again.",
    ),
    "garden": (
        "The {colour} flowers near the {noun} need water in {season}.",
        "Behind the {room} there is a {adj} garden with {food}.",
        "The gardener {often} works until the {part} is {adj}.",
        "{Many} leaves fell on the {adj} grass in {month}.",
        "A {adj} tree stood between the {noun} and the wall.",
        "The roses were {colour} and the grass was {adj}.",
    ),
    "house": (
        "The {room} had {adj} walls and a {colour} {thing}.",
        "In the {adj} house the windows were {often} open.",
        "The {thing} stood near the door, next to a {adj} {thing}.",
        "Nobody knew why the {thing} was made of {stuff}.",
        "{Many} rooms were {adj}, and one of them was {colour}.",
        "The old {job} cleaned the {room} and closed the {adj} door.",
    ),
    "sport": (
        "The game was {adj}, and {many} people watched it.",
        "In {month} the {adj} team {often} trains near the {noun}.",
        "A {job} likes {hobby} more than {hobby}.",
        "{Many} children tried {hobby} on the {adj} field.",
        "The race went from the {room} to the {noun}.",
        "After the game the players were {adj} and drank {drink}.",
    ),
    "school": (
        "The teacher wrote a {adj} word on the {colour} wall.",
        "{Many} children {often} read a {adj} story in the {part}.",
        "The lesson about the {noun} was {adj} and {adj}.",
        "In the {room} there were books about the {animal} and the {noun}.",
        "The class drew a {colour} {noun} and a {adj} {animal}.",
        "On {day} the children learned a song about a {noun}.",
    ),
}
_LISTS["Many"] = tuple(word.capitalize() for word in _LISTS["many"])
PATTERNS = MappingProxyType(
    {topic: tuple(Pattern(text, _LISTS) for text in texts) for topic, texts in _TEXTS.items()}
)
TOPICS = tuple(PATTERNS)
OPENINGS = (
    "Here is a text:", "Please read this:", "Some notes:", "Let me tell you a story.",
    "Read the following text.", "This is from a book:",
)  # fmt: skip
READ = "I have read it."


def sentences(rng: Random, count: int, topic: str | None = None) -> list[str]:
    """Return `count` sentences, of one topic or of any."""
    if topic is None:
        return [rng.choice(PATTERNS[rng.choice(TOPICS)]).fill(rng) for _ in range(count)]
    return [rng.choice(PATTERNS[topic]).fill(rng) for _ in range(count)]


def prose(rng: Random, tokens: int) -> str:
    """Return a text of about `tokens` tokens, in paragraphs of a topic each."""
    paragraphs: list[str] = []
    left = tokens
    while left > 0:
        count = rng.randint(2, 8)
        paragraphs.append(" ".join(sentences(rng, min(count, 1 + left // 13), rng.choice(TOPICS))))
        left -= 13 * count
    return "\n".join(paragraphs)


def read(rng: Random, tokens: int) -> Exchange:
    """Return a text of about `tokens` tokens and its acknowledgement."""
    text = prose(rng, tokens)
    return Turn("user", f"{rng.choice(OPENINGS)} {text}"), Turn(
        "assistant", READ, reasoning="This is a text without a question."
    )


class Filler:
    """Texts that the user wants read, and a word that they were.

    longest  tokens of the longest one
    """

    def __init__(self, rng: Random, longest: int) -> None:
        self._rng = rng
        self._longest = longest

    def step(self, at: int) -> Exchange:
        """Return a text and its acknowledgement."""
        del at
        return read(self._rng, self._rng.randint(20, self._longest))
