"""What can be said of people, things and events, and how it is said and asked.

In the templates `{S}` is whom it is about at a sentence's start and `{s}` inside it, `{P}` and
`{p}` the possessive, `{he}`, `{He}`, `{his}` the pronouns, `{v}` the value, `{a}` its article;
verbs stand in their plain form: `{live}` becomes "lives" or "live".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tests.train import lexicon

_VERBS = MappingProxyType(
    {
        "live": "lives", "work": "works", "have": "has", "like": "likes", "drink": "drinks",
        "play": "plays", "speak": "speaks", "drive": "drives", "do": "does", "be": "is",
        "was": "was", "eat": "eats", "cost": "costs", "belong": "belongs", "begin": "begins",
        "come": "comes", "love": "loves", "own": "owns", "enjoy": "enjoys",
    }
)  # fmt: skip
_PLAIN = {verb: verb for verb in _VERBS}
_OF_I = {**_PLAIN, "be": "am"}
_OF_YOU = {**_PLAIN, "be": "are", "was": "were"}


@dataclass(frozen=True, slots=True)
class Relation:
    """One thing that can be said.

    noun        what is asked for: "home", "job"
    values      the closed list of its values; "name" and "number" stand for those of a kind
    predicates  what follows the subject in a statement; can be joined by "and"
    states      whole statements that cannot
    asks        questions; `follows`: those that only make sense after another one
    answer      the answer, a whole sentence
    yes_no      a question for whether `{v}` is right
    reverse     a question for whom `{v}` is right, or ""
    """

    noun: str
    values: Sequence[str]
    predicates: tuple[str, ...]
    states: tuple[str, ...]
    asks: tuple[str, ...]
    follows: tuple[str, ...]
    answer: str
    yes_no: str
    reverse: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom or what is talked about.

    kind    which relations apply: "person", "thing", "event", "pet"
    state, ask, answer   words for the templates, in a statement of the user's, in his question and
            in the answer; `inside`: in the answer after "Yes,"
    """

    key: str
    kind: str
    state: dict[str, str]
    ask: dict[str, str]
    answer: dict[str, str]
    inside: dict[str, str]


def subject(name: str, *, kind: str, he: str, his: str) -> Subject:
    """Return someone who is named ("Anna", "the lamp") or the user's own ("my sister")."""
    told = _words(name, name + "'s", he=he, his=his)
    yours = "your" + name[2:] if name.startswith("my ") else name
    answered = _words(yours, yours + "'s", he=he, his=his)
    inside = {**answered, "S": answered["s"], "P": answered["p"]}
    return Subject(name, kind, told, told, answered, inside)


def the_user() -> Subject:
    """Return the user himself: "I" in what he says, "you" in what he is told."""
    state = _words("I", "my", he="I", his="my", verbs=_OF_I)
    answer = _words("you", "your", he="you", his="your", verbs=_OF_YOU)
    inside = {**answer, "S": "you", "P": "your"}
    return Subject("I", "self", state, state, answer, inside)


def _words(
    name: str, possessive: str, *, he: str, his: str, verbs: Mapping[str, str] = _VERBS
) -> dict[str, str]:
    words = {"s": name, "p": possessive, "he": he, "his": his, **verbs}
    return words | {lexicon.capital(key): lexicon.capital(word) for key, word in words.items()}


NAME, NUMBER, PRICE, AGE, HOUR = ("name",), ("number",), ("price",), ("age",), ("hour",)

_PERSON = (
    Relation(
        "home", lexicon.CITIES,
        ("{live} in {v}", "{have} a home in {v}"),
        ("{P} home is in {v}.", "{P} home town is {v}.", "{S} {live} in the city of {v}."),
        ("Where {do} {s} live?", "In which city {do} {s} live?", "What is {p} home town?",
         "Which city {do} {s} live in?", "Where is {p} home?", "What city {do} {s} live in?",
         "Do you know where {s} {live}?", "Can you tell me where {s} {live}?",
         "I forgot where {s} {live}."),
        ("And where {do} {he} live?", "And {his} home?", "Where {do} {he} live?"),
        "{S} {live} in {v}.", "{Do} {s} live in {v}?", "Who lives in {v}?",
    ),
    Relation(
        "job", lexicon.JOBS,
        ("{work} as {a} {v}", "{be} {a} {v}"),
        ("{P} job is {v}.", "{S} {have} a job as {a} {v}."),
        ("What is {p} job?", "What {do} {s} do for work?", "What {do} {s} work as?",
         "What {do} {s} do?", "Which job {do} {s} have?", "What job {do} {s} have?",
         "What {be} {s} by trade?",
         "Do you know what {p} job is?", "Can you tell me what {s} {work} as?"),
        ("And what is {his} job?", "And {his} job?", "And what {do} {he} work as?",
         "What {do} {he} do for work?"),
        "{S} {work} as {a} {v}.", "{Do} {s} work as {a} {v}?", "Who works as {a} {v}?",
    ),
    Relation(
        "age", AGE,
        ("{be} {v} years old",),
        ("{P} age is {v}.", "{S} {be} {v}."),
        ("How old {be} {s}?", "What is {p} age?", "Do you know how old {s} {be}?",
         "Can you tell me {p} age?"),
        ("And how old {be} {he}?", "And {his} age?", "How old {be} {he}?"),
        "{S} {be} {v} years old.", "{Be} {s} {v} years old?", "Who is {v} years old?",
    ),
    Relation(
        "pet", lexicon.ANIMALS,
        ("{have} a pet {v}", "{own} {a} {v}"),
        ("{P} pet is {a} {v}.",),
        ("Which pet {do} {s} have?", "What pet {do} {s} have?", "What kind of animal {do} {s} own?",
         "What is {p} pet?", "Which animal {do} {s} have?", "Do you know which pet {s} {have}?"),
        ("And {his} pet?", "And which pet {do} {he} have?"),
        "{S} {have} {a} {v}.", "{Do} {s} have {a} {v}?", "Who has {a} {v}?",
    ),
    Relation(
        "favourite colour", lexicon.COLOURS,
        ("{like} the colour {v}", "{love} the color {v}"),
        ("{P} favourite colour is {v}.", "{P} favorite color is {v}."),
        ("What is {p} favourite colour?", "What is {p} favorite color?",
         "Which colour {do} {s} like?", "What color {do} {s} like?"),
        ("And {his} favourite colour?", "And which colour {do} {he} like?",
         "And {his} favorite color?"),
        "{P} favourite colour is {v}.", "Is {v} {p} favourite colour?",
        "Who likes the colour {v}?",
    ),
    Relation(
        "favourite food", lexicon.FOODS,
        ("{like} to eat {v}", "{love} {v}"),
        ("{P} favourite food is {v}.", "{P} favorite food is {v}."),
        ("What is {p} favourite food?", "What is {p} favorite food?",
         "What {do} {s} like to eat?", "Which food {do} {s} like?",
         "Do you know what {s} {like} to eat?"),
        ("And what {do} {he} like to eat?", "And {his} favourite food?"),
        "{S} {like} to eat {v}.", "{Do} {s} like to eat {v}?", "Who likes to eat {v}?",
    ),
    Relation(
        "drink", lexicon.DRINKS,
        ("{drink} {v}", "{like} to drink {v}"),
        ("{P} favourite drink is {v}.",),
        ("What {do} {s} drink?", "What {do} {s} like to drink?", "What is {p} favourite drink?",
         "Do you know what {s} {drink}?", "I forgot what {s} {drink}."),
        ("And what {do} {he} drink?", "And {his} favourite drink?"),
        "{S} {drink} {v}.", "{Do} {s} drink {v}?", "Who drinks {v}?",
    ),
    Relation(
        "hobby", lexicon.HOBBIES,
        ("{like} {v}", "{enjoy} {v}"),
        ("{P} hobby is {v}.",),
        ("What is {p} hobby?", "Which hobby {do} {s} have?", "What {do} {s} enjoy?",
         "What {do} {s} like to do?", "Do you know {p} hobby?"),
        ("And {his} hobby?", "And what {do} {he} enjoy?"),
        "{P} hobby is {v}.", "Is {v} {p} hobby?", "Who likes {v}?",
    ),
    Relation(
        "instrument", lexicon.INSTRUMENTS,
        ("{play} the {v}",),
        ("{P} instrument is the {v}.",),
        ("Which instrument {do} {s} play?", "What instrument {do} {s} play?",
         "What {do} {s} play?", "Do you know what {s} {play}?"),
        ("And what {do} {he} play?", "And {his} instrument?"),
        "{S} {play} the {v}.", "{Do} {s} play the {v}?", "Who plays the {v}?",
    ),
    Relation(
        "birthday", lexicon.MONTHS,
        ("{was} born in {v}",),
        ("{P} birthday is in {v}.",),
        ("When {was} {s} born?", "In which month {was} {s} born?", "When is {p} birthday?",
         "Do you know when {s} {was} born?", "I forgot when {p} birthday is."),
        ("And when {was} {he} born?", "And {his} birthday?"),
        "{S} {was} born in {v}.", "{Was} {s} born in {v}?", "Who was born in {v}?",
    ),
    Relation(
        "language", lexicon.LANGUAGES,
        ("{speak} {v}",),
        ("{P} language is {v}.",),
        ("Which language {do} {s} speak?", "What language {do} {s} speak?",
         "Can you tell me which language {s} {speak}?"),
        ("And which language {do} {he} speak?", "And {his} language?"),
        "{S} {speak} {v}.", "{Do} {s} speak {v}?", "Who speaks {v}?",
    ),
    Relation(
        "country", lexicon.COUNTRIES,
        ("{come} from {v}",),
        ("{P} home country is {v}.",),
        ("Where {do} {s} come from?", "Which country {do} {s} come from?",
         "What is {p} home country?", "Do you know where {s} {come} from?"),
        ("And where {do} {he} come from?", "And {his} home country?"),
        "{S} {come} from {v}.", "{Do} {s} come from {v}?", "Who comes from {v}?",
    ),
    Relation(
        "car", lexicon.COLOURS,
        ("{drive} {a} {v} car", "{have} {a} {v} car"),
        ("{P} car is {v}.",),
        ("Which colour is {p} car?", "What colour is {p} car?", "What color is {p} car?"),
        ("And {his} car?", "And which colour is {his} car?"),
        "{P} car is {v}.", "Is {p} car {v}?", "Who drives {a} {v} car?",
    ),
    Relation(
        "lucky number", NUMBER,
        (),
        ("{P} lucky number is {v}.", "{P} favourite number is {v}."),
        ("What is {p} lucky number?", "Which lucky number {do} {s} have?",
         "What is {p} favourite number?"),
        ("And {his} lucky number?",),
        "{P} lucky number is {v}.", "Is {v} {p} lucky number?", "Whose lucky number is {v}?",
    ),
)  # fmt: skip


def _kin(noun: str) -> Relation:
    return Relation(
        noun, NAME,
        (f"{{have}} a {noun} called {{v}}",),
        (f"{{P}} {noun} is {{v}}.", f"{{P}} {noun} is called {{v}}.",
         f"The name of {{p}} {noun} is {{v}}."),
        (f"Who is {{p}} {noun}?", f"What is the name of {{p}} {noun}?",
         f"What is {{p}} {noun} called?", f"Do you know who {{p}} {noun} is?"),
        (f"And who is {{his}} {noun}?", f"And {{his}} {noun}?"),
        f"{{P}} {noun} is {{v}}.", f"Is {{v}} {{p}} {noun}?",
    )  # fmt: skip


_OWN_NAME = Relation(
    "name", NAME,
    ("{be} called {v}",),
    ("{P} name is {v}.",),
    ("What is {p} name?", "What {be} {s} called?"),
    ("And {his} name?",),
    "{P} name is {v}.", "Is {p} name {v}?",
)  # fmt: skip
_THING = (
    Relation(
        "place", lexicon.ROOMS,
        ("{be} in the {v}",),
        ("You can find {s} in the {v}.", "I put {s} in the {v}.", "I left {s} in the {v}."),
        ("Where is {s}?", "Where can I find {s}?", "In which place is {s}?",
         "Where did I put {s}?", "Do you know where {s} is?", "I forgot where {s} is."),
        ("And where is {he}?", "And {his} place?"),
        "{S} {be} in the {v}.", "Is {s} in the {v}?", "What is in the {v}?",
    ),
    Relation(
        "colour", lexicon.COLOURS,
        ("{be} {v}", "{have} the colour {v}"),
        ("The colour of {s} is {v}.", "The color of {s} is {v}."),
        ("Which colour is {s}?", "What colour is {s}?", "What color is {s}?",
         "What is the colour of {s}?", "What is the color of {s}?"),
        ("And {his} colour?", "And which colour is {he}?"),
        "{S} {be} {v}.", "Is {s} {v}?", "What is {v}?",
    ),
    Relation(
        "price", PRICE,
        ("{cost} {v} coins",),
        ("The price of {s} is {v} coins.", "I paid {v} coins for {s}."),
        ("How much {do} {s} cost?", "What is the price of {s}?", "What {do} {s} cost?",
         "How many coins {do} {s} cost?", "Can you tell me the price of {s}?"),
        ("And what {do} {he} cost?", "And {his} price?"),
        "{S} {cost} {v} coins.", "{Do} {s} cost {v} coins?", "What costs {v} coins?",
    ),
    Relation(
        "material", lexicon.MATERIALS,
        ("{be} made of {v}",),
        (),
        ("What is {s} made of?", "Which material is {s} made of?",
         "Do you know what {s} is made of?"),
        ("And what is {he} made of?", "And {his} material?"),
        "{S} {be} made of {v}.", "Is {s} made of {v}?", "What is made of {v}?",
    ),
    Relation(
        "owner", NAME,
        ("{belong} to {v}",),
        ("{v} owns {s}.", "The owner of {s} is {v}."),
        ("Who owns {s}?", "Whose is {s}?", "Who is the owner of {s}?", "To whom {do} {s} belong?",
         "Do you know who owns {s}?"),
        ("And who owns {he}?", "And {his} owner?"),
        "{S} {belong} to {v}.", "{Do} {s} belong to {v}?",
    ),
)  # fmt: skip
_EVENT = (
    Relation(
        "day", lexicon.DAYS,
        ("{be} on {v}",),
        ("The day of {s} is {v}.",),
        ("When is {s}?", "On which day is {s}?", "What day is {s}?"),
        ("And on which day is {he}?", "And {his} day?"),
        "{S} {be} on {v}.", "Is {s} on {v}?", "What is on {v}?",
    ),
    Relation(
        "hour", HOUR,
        ("{begin} at {v}",),
        ("The hour of {s} is {v}.",),
        ("At what hour {do} {s} begin?", "When {do} {s} begin?", "What time {do} {s} begin?"),
        ("And when {do} {he} begin?", "And {his} hour?"),
        "{S} {begin} at {v}.", "{Do} {s} begin at {v}?", "What begins at {v}?",
    ),
    Relation(
        "place", lexicon.ROOMS,
        ("{be} in the {v}",),
        ("The place of {s} is the {v}.",),
        ("Where is {s}?", "What is the place of {s}?", "In which place is {s}?"),
        ("And where is {he}?", "And {his} place?"),
        "{S} {be} in the {v}.", "Is {s} in the {v}?", "What is in the {v}?",
    ),
)  # fmt: skip
_OF_PERSONS = {relation.noun: relation for relation in (*_PERSON, *map(_kin, lexicon.KIN))}
RELATIONS: MappingProxyType[str, tuple[Relation, ...]] = MappingProxyType(
    {
        "person": (*_PERSON, *_OF_PERSONS.values()),
        "self": (*_PERSON, *_OF_PERSONS.values(), _OWN_NAME, _OWN_NAME),
        "pet": (_OWN_NAME, _OWN_NAME, _OF_PERSONS["age"], _OF_PERSONS["favourite food"]),
        "thing": _THING,
        "event": _EVENT,
    }
)
