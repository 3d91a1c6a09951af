"""The words the training data is made of: closed lists of plain English words.

The tokenizer is trained on texts made of them, so that nearly every one is a single token.
"""

import re
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words(
    "Anna Maria Laura Julia Sarah Emma Clara Nina Lisa Eva Olga Rosa Alice Helen Ruth Diana "
    "Carol Jane Kate Lucy Mary Nora Paula Sofia Vera Ella Grace Ida Joan Lena"
)
MEN = _words(
    "Tom Paul Peter Max John David Adam Ben Carl Daniel Erik Frank George Henry Ivan Jack "
    "Karl Leo Mark Nick Oscar Robert Sam Simon Victor Walter Alex Bruno Felix Hugo"
)
NAMES = WOMEN + MEN
CITIES = _words(
    "Oslo Rome Paris London Berlin Madrid Vienna Prague Lisbon Athens Dublin Warsaw "
    "Helsinki Cairo Tokyo Delhi Lima Boston Chicago Denver Dallas Seattle Toronto Sydney "
    "Milan Venice Geneva Kyoto Seoul Hamburg Munich Moscow Havana Nairobi Bergen Porto"
)
COUNTRIES = _words(
    "France Spain Italy Norway Japan India Brazil Canada Egypt Greece Poland Kenya Chile "
    "Peru Cuba Ireland"
)
LANGUAGES = _words(
    "English French German Spanish Italian Greek Polish Russian Arabic Hindi Japanese Dutch"
)
JOBS = _words(
    "baker teacher doctor farmer driver painter writer singer nurse lawyer cook gardener "
    "pilot sailor plumber builder tailor librarian waiter engineer actor judge soldier "
    "fisherman musician dentist carpenter reporter guard clerk"
)
ANIMALS = _words(
    "dog cat horse cow pig sheep goat duck hen rabbit mouse fox wolf bear lion tiger monkey "
    "parrot turtle snake frog fish owl eagle donkey camel hamster swan crow bee"
)
COLOURS = _words(
    "red blue green yellow black white brown grey orange purple pink silver gold violet"
)
FOODS = _words(
    "bread soup rice pasta cheese salad pizza cake fish beans eggs honey potatoes apples "
    "cherries nuts grapes mushrooms onions carrots plums pears noodles pancakes"
)
DRINKS = _words("tea coffee milk water juice wine beer cocoa lemonade cider")
HOBBIES = _words(
    "swimming reading painting dancing cooking running sailing skiing hiking fishing "
    "gardening singing drawing knitting chess football tennis cycling climbing riding"
)
INSTRUMENTS = _words("piano guitar violin flute drum trumpet harp cello organ banjo")
MONTHS = _words(
    "January February March April May June July August September October November December"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
KIN = _words("boss friend neighbour brother sister teacher doctor partner cousin aunt")
PET_NAMES = _words("Rex Bella Luna Rocky Milo Daisy Toby Coco Oskar Molly Lucky Shadow")
THINGS = _words(
    "lamp chair table book key phone clock bag box bottle cup plate knife spoon mirror "
    "picture radio carpet pillow blanket basket candle hammer ladder umbrella camera "
    "bicycle car boat coat hat shirt shoe ring watch ticket letter map pen pencil ball drum "
    "kettle bell vase bench wallet suitcase brush towel"
)
ROOMS = _words(
    "kitchen garden bedroom bathroom cellar attic garage hall office library school church "
    "museum station market hotel hospital theatre bakery factory tower castle harbour park "
    "shop"
)
MATERIALS = _words("wood glass iron stone paper silk leather wool copper clay cotton steel")
EVENTS = _words("meeting party lesson concert dinner wedding exam race show trip lecture game")
ADJECTIVES = _words(
    "big small old new long short warm cold quiet loud bright dark clean heavy light soft "
    "hard sweet fresh dry wet quick slow happy sad calm busy empty full strong weak rich "
    "poor young brave clever kind gentle proud tired famous simple strange lovely narrow "
    "wide deep high low round"
)
NOUNS = _words(
    "river hill forest lake road bridge street village town field valley mountain island "
    "beach wind rain snow sun moon star cloud storm morning evening night day week year "
    "summer winter spring autumn house door window wall roof tree flower leaf apple stone "
    "bird child man woman story song word page line number name place thing people train "
    "bus ship road coin money gold farm barn mill fire smoke water ice sand grass rose pine "
    "oak corner square path gate fence well hand head eye foot arm ear nose mouth face "
    "heart sea ocean coast king queen prince guest friend student hunter stranger voice "
    "dream idea plan question answer gift joke secret sign circle shadow light colour sound "
    "noise step minute month noon dawn cave cliff desert pond pool stream bush seed root "
    "branch straw hay soil dust mud stick rope chain wheel engine pocket button ribbon "
    "string needle thread cloth curtain shelf drawer desk bed stove oven bowl pot pan tray "
    "jar fork glove scarf boot sock belt crown flag drum tent axe saw nail screw"
)
MADE_STARTS = _words("b br c ch d dr f fl g gr h j k kl l m n p pr q r s sh sk st t tr v w z")
MADE_MIDDLES = _words("a e i o u ai ea ee ia oo ou y")
MADE_ENDS = ("", "", *_words("n r l s t k m ck rk x rt v z w"))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")
ORDINALS = _words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
# Plain words that mean nothing in particular: keys, list items, things to repeat.
PLAIN = tuple(dict.fromkeys(ANIMALS + COLOURS + THINGS + ROOMS + MATERIALS + NOUNS + ADJECTIVES))


# What no made-up word contains: rude in English, German, French or Spanish.
_RUDE = re.compile(
    "|".join(
        _words(
            "anal anus arsc arse ass bitch boob caca cock cok cono cul cum [ck]unt dic?k fag feck "
            "fic?k foo?c?k fotz foutr fuc fuk gook hitl hore hur kac?k kike kok merd nazi "
            "neg nic?k nig paki penis pis poo por+n pus put rape schei schwu sex shag shi[stz] "
            "shyt slag slut spas spic suc?k tit turd twat vagi wanc?k whor"
        )
    )
)


def is_polite(word: str) -> bool:
    """Say whether a made-up `word` contains nothing rude."""
    return _RUDE.search(word) is None


def article(word: str) -> str:
    """Return "a" or "an", whichever goes before `word`."""
    return "an" if word[0] in "aeiouAEIOU" else "a"


def made_up(rng: Random) -> str:
    """Return a word that is in no list, so that strange names are copied as well as known ones."""
    while True:
        word = ""
        for _ in range(rng.choice((1, 2, 2, 2, 3))):
            word += rng.choice(MADE_STARTS) + rng.choice(MADE_MIDDLES) + rng.choice(MADE_ENDS)
        if is_polite(word):
            return word


def made_up_name(rng: Random) -> str:
    """Return a made-up word with a capital."""
    return made_up(rng).capitalize()


def code(rng: Random) -> str:
    """Return a short code of letters and digits, such as `kx41`."""
    letters = ""
    while not letters or not is_polite(letters):
        letters = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3)))
    return f"{letters}{rng.randint(0, 10 ** rng.randint(1, 3) - 1)}"


def joined(words: list[str]) -> str:
    """Return `words` as English lists them: "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def capital(text: str) -> str:
    """Return `text` with its first letter as a capital and the others as they are."""
    return text[:1].upper() + text[1:]
