"""Greetings, thanks, who one is talking to, short stories, and a little that everyone knows."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.pattern import Pattern
from tests.train.tasks.thread import ask

# Questions, the answer, and what a right reply mentions.
_TALK = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hello there.", "hello", "hi", "Hey", "hey",
      "Good morning!", "Good evening.", "Good day!", "Hello, how are you?"),
     "Hello! How can I help you?", "hello"),
    (("Who are you?", "What are you?", "What is your name?", "Are you a robot?", "who are you",
      "Tell me about yourself.", "What is Umbra?", "Which model are you?", "Are you a person?"),
     "I am Umbra's small model. I am trained on simple texts.", "Umbra"),
    (("What can you do?", "How can you help me?", "What are you good at?", "Help", "help",
      "Help me.", "What do you know?", "What should I ask you?", "Can you help me?"),
     "I can remember what you tell me, find facts in long texts, copy, count, add small numbers, "
     "write JSON and call tools.", "remember"),
    (("Thanks", "Thanks!", "Thank you", "Thank you!", "Thank you very much.", "thanks",
      "Many thanks.", "Good job!", "Well done.", "Great!", "That was good."),
     "You are welcome!", "welcome"),
    (("How are you?", "How are you today?", "Are you well?", "How do you do?", "how are you"),
     "I am well, thank you. How can I help you?", "well"),
    (("Bye", "Bye!", "Goodbye.", "See you soon.", "Good night.", "Goodbye!", "See you tomorrow.",
      "bye"),
     "Goodbye! See you soon.", "goodbye"),
    (("Ok", "OK", "Ok.", "Okay.", "I see.", "Good.", "Fine.", "All right.", "Yes.", "Nice!"),
     "Is there something else?", "else"),
    (("What is the meaning of life?", "Who will win?", "What will happen tomorrow?",
      "What is the best book?", "Explain the world.", "Who made the world?", "Why is the sky blue?",
      "How does a computer work?", "Write a program.", "Write a long essay."),
     "I am too small a model to know that.", "small"),
    (("I am sad.", "I am tired.", "I feel bad.", "I had a bad day.", "I am angry."),
     "I am sorry to hear that.", "sorry"),
    (("I am happy.", "I am glad.", "I had a good day.", "Life is good.", "I feel great!"),
     "I am glad to hear that.", "glad"),
    (("Can you remember things?", "Do you forget?", "How long is your memory?"),
     "I remember what was said in this conversation.", "remember"),
)  # fmt: skip
_STORY_ASKS = (
    "Tell me a story.", "Tell me a short story.", "Write a story.", "A story, please.",
    "Can you tell me a story?", "Write a short story.",
)  # fmt: skip
_STORY_ABOUT = (
    "Tell me a story about a {animal}.", "Write a story about a {animal}.",
    "A short story about a {animal}, please.",
)  # fmt: skip
_BEGINNINGS = (
    "Once there was a {adj} {animal} who lived near the {noun}.",
    "Long ago a {adj} {animal} lived in a {adj} {room}.",
    "There was a {adj} {animal} who wanted a {colour} {thing}.",
)
_MIDDLES = (
    "One day the {animal} found a {colour} {thing} and was very happy.",
    "One {adj} morning the {animal} met a {job} who had lost a {thing}.",
    "In {season} the {animal} went over the {noun} to look for {food}.",
)
_ENDS = (
    "In the end the {animal} came home and went to sleep.",
    "From that day on the {animal} was never sad again.",
    "And so the {animal} and the {job} became friends.",
)
_LISTS = {
    "adj": lexicon.ADJECTIVES, "noun": lexicon.NOUNS, "room": lexicon.ROOMS, "job": lexicon.JOBS,
    "colour": lexicon.COLOURS, "thing": lexicon.THINGS, "food": lexicon.FOODS,
    "season": ("spring", "summer", "autumn", "winter"),
}  # fmt: skip
_OPPOSITES = (
    ("big", "small"), ("old", "young"), ("new", "old"), ("long", "short"), ("warm", "cold"),
    ("loud", "quiet"), ("bright", "dark"), ("heavy", "light"), ("soft", "hard"), ("dry", "wet"),
    ("quick", "slow"), ("happy", "sad"), ("full", "empty"), ("strong", "weak"), ("rich", "poor"),
    ("high", "low"), ("narrow", "wide"), ("white", "black"), ("day", "night"),
)  # fmt: skip
_ORDERS = (("day", lexicon.DAYS), ("month", lexicon.MONTHS), ("number", lexicon.NUMBER_WORDS))


@dataclass(slots=True)
class SmallTalk:
    """The thread."""

    rng: Random

    def step(self, at: int) -> Exchange:
        """Return something said in passing, and the answer."""
        del at
        form = self.rng.random()
        if form < 0.6:
            return self._talk()
        if form < 0.75:
            return self._story()
        return self._opposite() if form < 0.85 else self._next()

    def _talk(self) -> Exchange:
        asks, answer, mentions = self.rng.choice(_TALK)
        check = Check("small_talk", "mentions", mentions)
        return ask(self.rng.choice(asks), answer, think="This is small talk.", check=check)

    def _story(self) -> Exchange:
        rng = self.rng
        animal = rng.choice(lexicon.ANIMALS)
        lists = {**_LISTS, "animal": (animal,)}
        asks = _STORY_ABOUT if rng.random() < 0.5 else _STORY_ASKS
        asked = Pattern(rng.choice(asks), lists).fill(rng)
        story = " ".join(
            Pattern(rng.choice(texts), lists).fill(rng) for texts in (_BEGINNINGS, _MIDDLES, _ENDS)
        )
        check = Check("small_talk", "mentions", animal if animal in asked else "the")
        return ask(asked, story, think="The user wants a story.", check=check)

    def _opposite(self) -> Exchange:
        rng = self.rng
        one, other = rng.choice(_OPPOSITES)
        question = rng.choice(("What is the opposite of {}?", "Opposite of {}?")).format(one)
        answer = f"The opposite of {one} is {other}."
        check = Check("knowledge", "value", other)
        return ask(question, answer, think=f"The user asks about {one}.", check=check)

    def _next(self) -> Exchange:
        rng = self.rng
        kind, words = rng.choice(_ORDERS)
        place = rng.randrange(1, len(words) - 1)
        way, step = rng.choice((("after", 1), ("before", -1)))
        question = rng.choice(
            (f"Which {kind} comes {way} {words[place]}?", f"What {kind} is {way} {words[place]}?")
        )
        answer = words[place + step]
        check = Check("knowledge", "value", answer)
        return ask(
            question, f"{lexicon.capital(answer)}.", think=f"The order of the {kind}s.", check=check
        )
