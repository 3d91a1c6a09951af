"""Facts of a text as a JSON object whose keys a schema, or the question, names.

The answer is compact JSON and nothing else, its keys in the order they are asked for in.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.pattern import Pattern
from tests.train.tasks.filler import sentences
from tests.train.tasks.thread import ask

_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy")
_LISTS = {
    "name": lexicon.NAMES,
    "city": lexicon.CITIES,
    "job": lexicon.JOBS,
    "animal": lexicon.ANIMALS,
    "colour": lexicon.COLOURS,
    "food": lexicon.FOODS,
    "drink": lexicon.DRINKS,
    "item": lexicon.THINGS,
    "place": lexicon.ROOMS,
    "event": lexicon.EVENTS,
    "day": lexicon.DAYS,
    "month": lexicon.MONTHS,
    "material": lexicon.MATERIALS,
    "sky": _SKIES,
    "hobby": lexicon.HOBBIES,
    "country": lexicon.COUNTRIES,
    "language": lexicon.LANGUAGES,
}
_NUMBERS = {
    "age": (5, 95), "count": (1, 50), "price": (1, 999), "degrees": (0, 35), "hour": (1, 12),
    "room": (1, 400), "year": (1900, 2030),
}  # fmt: skip
# Kinds of records: the sentences each field may be said in; "{}" is the value.
_RECORDS: MappingProxyType[str, dict[str, tuple[str, ...]]] = MappingProxyType(
    {
        "person": {
            "name": ("My name is {}.", "This is {}.", "We met {}."),
            "age": ("The age is {}.", "{} years old."),
            "city": ("Lives in {}.", "The home is in {}."),
            "job": ("Works as a {}.", "The job is {}."),
            "country": ("Comes from {}.",),
            "language": ("Speaks {}.",),
            "hobby": ("Likes {}.", "The hobby is {}."),
        },
        "order": {
            "name": ("{} has ordered.", "An order of {}.", "The order is for {}."),
            "item": ("The item is a {}.", "Wants to buy a {}."),
            "count": ("The count is {}.", "{} pieces."),
            "price": ("It costs {} coins.", "The price is {}."),
            "colour": ("The colour is {}.", "It should be {}."),
            "material": ("Made of {}.",),
        },
        "event": {
            "event": ("There is a {}.", "You are asked to come to the {}."),
            "day": ("It is on {}.", "Come on {}."),
            "hour": ("It begins at {}.", "The hour is {}."),
            "place": ("It is in the {}.", "The place is the {}."),
            "room": ("The room is number {}.",),
            "month": ("It is in {}.",),
        },
        "pet": {
            "name": ("The pet is called {}.", "Its name is {}."),
            "animal": ("It is a {}.", "The animal is a {}."),
            "age": ("It is {} years old.", "Its age is {}."),
            "colour": ("It is {}.", "Its colour is {}."),
            "food": ("It eats {}.",),
        },
        "weather": {
            "city": ("The weather in {}.", "News from {}."),
            "sky": ("It is {} there.", "The sky is {}."),
            "degrees": ("It has {} degrees.", "{} degrees today."),
            "day": ("The day is {}.",),
        },
    }
)
# Whole sentences that people write: the fields are the holes.
_WHOLE: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "person": (
            "{name} is {age} years old, lives in {city} and works as a {job}.",
            "{name} is a {job} from {city}. The age is {age}.",
            "I met {name}, who is {age}, lives in {city}, works as a {job} and likes {hobby}.",
            "{name} from {country} speaks {language} and lives in {city}.",
        ),
        "order": (
            "{name} orders {count} pieces of the {colour} {item} for {price} coins.",
            "Please send a {colour} {item} made of {material} to {name}. The price is {price}.",
            "{name} bought a {item} for {price} coins.",
        ),
        "event": (
            "The {event} is on {day} at {hour} in the {place}.",
            "Come to the {event} in the {place}, room {room}, on {day} at {hour}.",
        ),
        "pet": (
            "{name} is a {colour} {animal}, {age} years old, and eats {food}.",
            "My {animal} {name} is {age} years old and {colour}.",
        ),
        "weather": (
            "On {day} it is {sky} in {city} with {degrees} degrees.",
            "{city} has {degrees} degrees today and it is {sky}.",
        ),
    }
)
_READS = ("", "", "Text: ", "Read this: ", "Here is the text: ", "Extract the data: ")
_ASKS = (
    "Answer as JSON with the keys {}.", "Give me JSON with the keys {}.",
    "Write it as JSON with {}.", "Return a JSON object with the keys {}.",
    "Extract {} as JSON.",
)  # fmt: skip


@dataclass(slots=True)
class JsonFormat:
    """The thread; with a schema every exchange of the dialogue fits to it.

    keys      of the schema, () where the questions name them
    fillers   most sentences of prose around the text
    """

    rng: Random
    with_schema: bool
    fillers: int = 2
    kind: str = ""
    keys: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.with_schema:
            self.kind = self.rng.choice(list(_RECORDS))
            self.keys = tuple(self._choose(list(_RECORDS[self.kind]), 4))

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The request's `response_format`."""
        if not self.keys:
            return None
        properties = {
            key: {"type": "integer" if key in _NUMBERS else "string"} for key in self.keys
        }
        schema = {"type": "object", "properties": properties, "required": list(self.keys)}
        return {"type": "json_schema", "json_schema": {"name": self.kind, "schema": schema}}

    def step(self, at: int) -> Exchange:
        """Return a text, and what is asked of it as JSON."""
        del at
        rng = self.rng
        kind = self.kind or rng.choice(list(_RECORDS))
        values, text = self._record(kind)
        text = " ".join(
            [
                *(sentences(rng, rng.randint(0, self.fillers)) if rng.random() < 0.2 else ()),
                text,
                *(sentences(rng, rng.randint(0, self.fillers)) if rng.random() < 0.2 else ()),
            ]
        )
        question = rng.choice(_READS) + text
        keys = self.keys
        if not keys:
            keys = tuple(self._choose(list(values), 4))
            question = f"{question} {rng.choice(_ASKS).format(lexicon.joined(list(keys)))}"
        wanted = {key: values[key] for key in keys}
        answer = json.dumps(wanted, ensure_ascii=False, separators=(",", ":"))
        check = Check("json_format", "json", answer, source=text)
        think = f"The user wants {lexicon.joined(list(keys))} as JSON."
        return ask(question, answer, think=think, check=check)

    def _choose(self, names: list[str], most: int) -> list[str]:
        rng = self.rng
        chosen = rng.sample(names, rng.randint(1, min(most, len(names))))
        return chosen if rng.random() < 0.5 else [name for name in names if name in chosen]

    def _record(self, kind: str) -> tuple[dict[str, Any], str]:
        """Return values of a record that has at least the wanted keys, and how it is said."""
        rng = self.rng
        fitting = [p for p in _PATTERNS[kind] if set(self.keys) <= set(p[0])]
        if fitting and rng.random() < 0.7:
            names, template = rng.choice(fitting)
            values = {name: _value(rng, name) for name in names}
            return values, _said(rng, template, values)
        names = list(dict.fromkeys((*self.keys, *self._choose(list(_RECORDS[kind]), 6))))
        names = [name for name in _RECORDS[kind] if name in names]
        values = {name: _value(rng, name) for name in names}
        return values, " ".join(
            _said(rng, rng.choice(_RECORDS[kind][name]).replace("{}", f"{{{name}}}"), values)
            for name in names
        )


def _fields(template: str) -> tuple[str, ...]:
    return tuple(piece.partition("}")[0] for piece in template.split("{")[1:])


_PATTERNS: dict[str, list[tuple[Sequence[str], str]]] = {
    kind: [(_fields(template), template) for template in templates]
    for kind, templates in _WHOLE.items()
}


def _value(rng: Random, name: str) -> str | int:
    if name in _NUMBERS:
        return rng.randint(*_NUMBERS[name])
    if name in ("name", "city") and rng.random() < 0.1:
        return lexicon.made_up_name(rng)
    return rng.choice(_LISTS[name])


def _said(rng: Random, template: str, values: dict[str, Any]) -> str:
    return Pattern(template, {key: (str(value),) for key, value in values.items()}).fill(rng)
