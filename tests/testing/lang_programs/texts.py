"""Programs that write plain text: completions, choices, numbers, JSON."""

from runtime.lang.choices import greedy_token_selection
from runtime.lang.ir import REGEX_FLOAT, REGEX_INT, REGEX_STR
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import gen, gen_int, select
from tests.testing.lang_programs.case import Case

SHOTS = "".join(
    f"Q: Where does {name} live?\nA: {name} lives in {city}.\n\n"
    for name, city in (
        ("Anna", "Rome"),
        ("Lena", "Oslo"),
        ("Tom", "Lima"),
        ("Mary", "Bonn"),
        ("Otto", "Kiel"),
        ("Eva", "Bern"),
        ("Paul", "Graz"),
        ("Ida", "Nice"),
    )
)


@function
def few_shot_qa(s: State, question: str) -> None:
    s += "The following are questions with answers.\n\n" + SHOTS
    s += "Q: " + question + "\n"
    s += "A:" + gen("answer", stop="\n")


@function
def true_or_false(s: State, statement: str) -> None:
    s += "Say whether the statement below is True, False, or Unknown.\n" + SHOTS
    s += "Statement: " + statement + "\n"
    s += "Answer:" + select("answer", [" True", " False", " Unknown"])


@function
def endings(s: State, question: str, choices: list[str]) -> None:
    s += SHOTS + question
    s += select("answer", choices=choices)


@function
def few_shot_choice(s: State, examples: str, question: str) -> None:
    s += examples + question + gen("answer")


@function
def numbers(s: State) -> None:
    s += "The number of hours in a day is " + gen_int("hours") + "\n"
    s += "The number of days in a year is " + gen("days", dtype=int) + "\n"
    s += "Pi is " + gen("pi", dtype=float) + "\nIt is a number: " + gen("so", dtype=bool)


@function
def described(s: State) -> None:
    s += "Describe the city of Oslo as a JSON object.\nHere it is:\n"
    with s.var_scope("json"):
        s += '{\n  "name": ' + gen(regex=REGEX_STR) + ",\n"
        s += '  "people": ' + gen(regex=REGEX_INT, stop=[" ", "\n"]) + ",\n"
        s += '  "north": ' + gen(regex=REGEX_FLOAT, stop=[" ", "\n"]) + "\n}"


@function
def extracted(s: State, document: str) -> None:
    s += "Please extract what is sold from the following page.\nPage begin.\n" + document
    s += "Page end.\nHere are the name and the item in JSON format.\n{\n"
    s += '  "name": "' + gen("name", max_tokens=8, stop='"') + '",\n'
    s += '  "the item": "' + gen("the item", max_tokens=8, stop='"') + '",\n}\n'


@function
def by_pattern(s: State, name: str) -> None:
    s += name + " is in a book. Please fill in the following about this person.\n"
    s += gen("json", max_tokens=40, regex=r'\{\n  "house": "(red|blue)",\n  "age": [0-9]{1,2}\n\}')


@function
def expert_answer(s: State, question: str) -> None:
    s += "Question: " + question + "\n"
    s += "A good person to answer this question is" + gen("expert", stop=[".", "\n"]) + ".\n"
    s += "For example," + s["expert"] + " would answer that " + gen("answer", stop=".") + "."


@function
def tool_use(s: State, lhs: int, rhs: int) -> None:
    s += "Use a calculator. For example,\ncalculate(1+2)=3\ncalculate(3*4)=12\n"
    s += "Question: What is the product of " + str(lhs) + " and " + str(rhs) + "?\n"
    s += "Answer: The answer is calculate(" + gen("expression", stop=")") + ") = "
    with s.var_scope("answer"):
        s += str(len(s["expression"]))


@function
def react(s: State, question: str) -> None:
    s += SHOTS + "Question: " + question + "\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + gen(stop=[".", "\n"]) + ".\n"
        s += f"Action {i}: " + select(f"action_{i}", ["Search", "Finish"])
        if s[f"action_{i}"] == "Search":
            s += " [" + gen(stop="]") + "].\n"
            s += f"Observation {i}:" + gen(stop=[".", "\n"]) + ".\n"
        else:
            s += " [" + gen("answer", stop="]") + "].\n"
            break


@function(num_api_spec_tokens=64)
def character(s: State) -> None:
    s += "Make up a person in the following format:\nName: Tom.\nJob: Baker.\n\nA new one:\n"
    s += "Name:" + gen("name", stop="\n") + "\nJob:" + gen("job", stop="\n") + "\n"


@function
def turns_of_text(s: State, qas: list[dict[str, str | int]]) -> None:
    for qa in qas:
        s += str(qa["prompt"])
        s += gen(max_tokens=int(qa["new_tokens"]), ignore_eos=True)


@function
def rated(s: State, person: str, event: str) -> None:
    s += "Here is a brief description of " + person + ".\nShe lives in Rome and is a baker.\n"
    s += "On the scale of 1 to 10 rate the following event for" + person + ".\n\nEvent: " + event
    s += "Rate (return a number between 1 to 10):"
    s += gen(name="Rate", max_tokens=2)


@function
def chosen_tool(s: State, question: str) -> None:
    s += "To answer this question: " + question + ", "
    s += "I need to use a " + gen("tool", choices=["calculator", "search engine"])
    s += ". " + gen("sure", choices=["Yes", "No"], choices_method=greedy_token_selection)


CASES = {
    "few-shot questions": Case(
        few_shot_qa, [{"question": f"Where does {name} live?"} for name in ("Anna", "Tom", "Lena")]
    ),
    "true or false": Case(true_or_false, [{"statement": "Oslo is in Rome."}]),
    "endings": Case(
        endings,
        [
            {"question": "Anna walks: she ", "choices": ["walks home", "is a bear"]},
            {"question": "Lena sings: she ", "choices": ["sings on", "is a lamp", "runs"]},
        ],
    ),
    "few-shot choice": Case(
        few_shot_choice,
        [{"examples": SHOTS, "question": f"Is {c} a city?\nAnswer:"} for c in ("Oslo", "Tom")],
        {"max_new_tokens": 1},
    ),
    "numbers": Case(numbers),
    "described": Case(described, sampling={"max_new_tokens": 10}),
    "extracted": Case(
        extracted, [{"document": f"Mary bought a {i} for 7 coins.\n"} for i in ("lamp", "kettle")]
    ),
    "by pattern": Case(by_pattern, [{"name": "Anna"}]),
    "expert answer": Case(expert_answer, [{"question": "Where does Lena live?"}]),
    "tool use": Case(tool_use, [{"lhs": 25, "rhs": 98}]),
    "react": Case(react, [{"question": "Where does Tom live?"}]),
    "character": Case(character),
    "turns of text": Case(
        turns_of_text,
        [
            {"qas": [{"prompt": f"{SHOTS}{k}", "new_tokens": 4}, {"prompt": "So", "new_tokens": 8}]}
            for k in range(2)
        ],
    ),
    "rated": Case(rated, [{"person": "Anna", "event": "a walk. "}]),
    "chosen tool": Case(
        chosen_tool, [{"question": "What is 5 + 6?"}, {"question": "Who is Anna?"}]
    ),
}
