"""The tools of the training data: what each is called, takes, is asked for and answers.

Names of tools and parameters vary, so that the schemas have to be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.train import lexicon

UNITS = ("kilometres", "miles", "metres", "feet", "pounds", "kilograms")
SHOWS = ("news", "music", "sport", "films")
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy")


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter.

    names   what it may be called in the schema
    values  its words; () for a number from `low` to `high`
    """

    names: tuple[str, ...]
    values: Sequence[str] = ()
    low: int = 1
    high: int = 20

    @property
    def type(self) -> str:
        """The type in the schema."""
        return "string" if self.values else "integer"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; "{0}", "{1}" are the values of its slots, "{r}" is the result's.

    wants    what the user wants, in the words of somebody who thinks about it
    results  the values of the result; () for a number to 99, `key` is its name
    """

    names: tuple[str, ...]
    describes: tuple[str, ...]
    slots: tuple[Slot, ...]
    asks: tuple[str, ...]
    wants: str
    key: str
    results: Sequence[str]
    answer: str


_CITY = Slot(("city", "place", "location"), lexicon.CITIES)
_NAME = Slot(("name", "person", "to"), lexicon.NAMES)
_DAY = Slot(("day", "date"), lexicon.DAYS)
_DONE = ("done", "saved")

TOOLS = (
    Tool(
        ("get_weather", "weather", "weather_report"),
        ("Get the weather of a city", "The weather in a city"),
        (_CITY,),
        ("What is the weather in {0}?", "How is the weather in {0}?", "Tell me the weather in {0}.",
         "Is it warm in {0}?", "What is the weather like in {0}?"),
        "the weather in {0}", "sky", SKIES, "It is {r} in {0}.",
    ),
    Tool(
        ("get_time", "time_in", "clock"),
        ("Get the time in a city", "What time it is in a city"),
        (_CITY,),
        ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"),
        "the time in {0}", "hour", (), "It is {r} in {0}.",
    ),
    Tool(
        ("add_numbers", "add", "sum"),
        ("Add two numbers",),
        (Slot(("a", "first"), low=1, high=9999), Slot(("b", "second"), low=1, high=9999)),
        ("Add {0} and {1}.", "Use the tool to add {0} and {1}.", "Sum of {0} and {1}, please."),
        "the sum of {0} and {1}", "sum", (), "The sum is {r}.",
    ),
    Tool(
        ("send_message", "send_mail", "write_to"),
        ("Send a message to a person",),
        (_NAME, Slot(("text", "message"), tuple(
            f"{verb} the {thing}" for verb in ("bring", "buy", "clean", "send", "open", "find")
            for thing in lexicon.THINGS))),
        ("Send a message to {0}: {1}", "Write to {0}: {1}", "Tell {0} to {1}",
         'Send "{1}" to {0}.'),
        "a message to {0}", "status", _DONE, "I have sent the message to {0}.",
    ),
    Tool(
        ("set_alarm", "alarm", "wake_up"),
        ("Set an alarm for an hour",),
        (Slot(("hour", "time"), low=1, high=12),),
        ("Set an alarm for {0}.", "Wake me up at {0}.", "Please set the alarm to {0}."),
        "an alarm for {0}", "status", _DONE, "The alarm is set for {0}.",
    ),
    Tool(
        ("play_music", "play_song", "music"),
        ("Play music of an instrument",),
        (Slot(("instrument", "kind"), lexicon.INSTRUMENTS),),
        ("Play some {0} music.", "I want to hear the {0}.", "Play the {0}."),
        "{0} music", "status", ("playing",), "I am playing {0} music.",
    ),
    Tool(
        ("find_place", "search_place", "nearest"),
        ("Find a place in a city",),
        (Slot(("kind", "what"), lexicon.ROOMS), _CITY),
        ("Find a {0} in {1}.", "Where is a {0} in {1}?", "Is there a {0} in {1}?",
         "I need a {0} in {1}."),
        "a {0} in {1}", "street", tuple(f"{word} street" for word in lexicon.ADJECTIVES),
        "There is a {0} in {r}.",
    ),
    Tool(
        ("book_table", "reserve_table", "order_table"),
        ("Book a table on a day for some guests",),
        (_DAY, Slot(("guests", "people"), low=1, high=12)),
        ("Book a table on {0} for {1} people.", "A table for {1} guests on {0}, please.",
         "Reserve a table for {1} on {0}."),
        "a table on {0}", "number", (), "You have table {r} on {0}.",
    ),
    Tool(
        ("get_price", "price_of", "look_up_price"),
        ("Get the price of a thing in coins",),
        (Slot(("item", "thing", "product"), lexicon.THINGS),),
        ("How much is a {0} in the shop?", "Look up the price of a {0}.",
         "What does a {0} cost in the shop?", "Get the price of a {0}."),
        "the price of the {0}", "coins", (), "The {0} costs {r} coins.",
    ),
    Tool(
        ("translate", "translate_word"),
        ("Translate a word to a language",),
        (Slot(("word", "text"), lexicon.PLAIN), Slot(("language", "to"), lexicon.LANGUAGES)),
        ("Translate {0} to {1}.", "What is {0} in {1}?", "How do you say {0} in {1}?"),
        "{0} in {1}", "word", ("made_up",), "In {1} it is {r}.",
    ),
    Tool(
        ("buy_ticket", "book_ticket", "order_ticket"),
        ("Buy a ticket from a city to a city",),
        (Slot(("from", "start"), lexicon.CITIES), Slot(("to", "goal"), lexicon.CITIES)),
        ("Buy a ticket from {0} to {1}.", "I want to travel from {0} to {1}.",
         "Book a train from {0} to {1}."),
        "a ticket to {1}", "price", (), "The ticket to {1} costs {r} coins.",
    ),
    Tool(
        ("turn_on", "switch_on", "start"),
        ("Turn on a thing in a room",),
        (Slot(("thing", "device"), ("lamp", "radio", "clock", "phone", "camera", "kettle")),
         Slot(("room", "place"), lexicon.ROOMS)),
        ("Turn on the {0} in the {1}.", "Switch on the {0} in the {1}.",
         "Please start the {0} in the {1}."),
        "the {0} on", "status", ("on",), "The {0} in the {1} is on.",
    ),
    Tool(
        ("convert", "convert_units"),
        ("Convert an amount from a unit to a unit",),
        (Slot(("amount", "number"), low=1, high=999), Slot(("from", "unit"), UNITS),
         Slot(("to", "goal"), UNITS)),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What are {0} {1} in {2}?"),
        "{0} {1} in {2}", "result", (), "That is {r} {2}.",
    ),
    Tool(
        ("get_news", "news", "read_news"),
        ("Get the news about a topic",),
        (Slot(("topic", "about"), (*SHOWS, *lexicon.COUNTRIES)),),
        ("What is the news about {0}?", "Read me the news about {0}.", "Any news about {0}?"),
        "the news about {0}", "news",
        tuple(f"A {word} day" for word in lexicon.ADJECTIVES), "The news about {0}: {r}.",
    ),
    Tool(
        ("add_to_list", "remember_item", "put_on_list"),
        ("Put some of an item on the shopping list",),
        (Slot(("item", "what"), lexicon.FOODS), Slot(("count", "amount"), low=1, high=20)),
        ("Put {1} {0} on my list.", "Add {1} {0} to the shopping list.",
         "I need {1} {0}, write it down."),
        "{0} on the list", "status", _DONE, "I have put {1} {0} on your list.",
    ),
)  # fmt: skip
