"""Every task asks what can be answered, and answers it right."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import pytest

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Reply, Turn
from tests.train.mixture import THREADS, schema_dialogue, tool_dialogue
from tests.train.pattern import Pattern
from tests.train.tasks.facts import CHANGED, UNKNOWN, Facts
from tests.train.tasks.filler import READ, prose
from tests.train.tasks.overview import _LISTS
from tests.train.tasks.thread import Thread, place_to_ask, size_of


def _talk(thread: Thread, exchanges: int) -> list[Turn]:
    turns: list[Turn] = []
    at = 0
    for _ in range(exchanges):
        exchange = thread.step(at)
        at += size_of(exchange)
        turns += exchange
    return turns


def _checked(turns: list[Turn]) -> Iterator[tuple[int, Check]]:
    return ((number, turn.check) for number, turn in enumerate(turns) if turn.check is not None)


@pytest.mark.parametrize("task", THREADS)
def test_the_answer_given_is_right_and_hardly_any_other_is(task: str) -> None:
    turns = _talk(THREADS[task](Random(f"right {task}"), 1000), 400)
    checks = list(_checked(turns))
    answers = [turns[number].content for number, _ in checks]

    assert all(check.passes(Reply(turns[number].content)) for number, check in checks)
    shifted = zip(checks, answers[1:], strict=False)
    others = sum(check.passes(Reply(answer)) for (_, check), answer in shifted)
    assert others < 0.4 * len(checks)


@pytest.mark.parametrize("task", THREADS)
def test_every_exchange_begins_with_the_user_and_ends_with_an_answer(task: str) -> None:
    thread = THREADS[task](Random(task), 500)
    for _ in range(300):
        exchange = thread.step(0)

        assert exchange[0].role == "user"
        assert exchange[0].content.strip()
        assert (exchange[-1].role, bool(exchange[-1].content)) == ("assistant", True)
        assert exchange[-1].reasoning


@pytest.mark.parametrize("task", ["facts", "pairs", "needle", "copying"])
def test_what_is_asked_was_said_before(task: str) -> None:
    turns = _talk(THREADS[task](Random(f"said {task}"), 1000), 500)
    for number, check in _checked(turns):
        said = "\n".join(turn.content for turn in turns[:number] if turn.role == "user")

        assert check.source in said
        if check.rule == "exact" and task == "pairs":
            assert check.expected in check.source.replace('"', "")


def test_a_later_statement_of_a_fact_wins() -> None:
    thread = Facts(Random(4), state_share=1.0)
    corrected = 0
    for _ in range(200):
        exchange = thread.step(0)
        if exchange[1].content != CHANGED:
            continue
        corrected += 1
        fact = thread.facts[-1]
        assert exchange[0].content.endswith(fact.text)
        assert fact.value in fact.answer()
        same = [
            old
            for old in thread.facts
            if (old.subject.key, old.relation.noun) == (fact.subject.key, fact.relation.noun)
        ]
        assert same == [fact]

    assert corrected > 10


def test_facts_are_asked_for_in_all_the_ways_there_are() -> None:
    turns = _talk(Facts(Random(7)), 1500)
    checks = [check for _, check in _checked(turns)]

    rules = Counter(check.rule for check in checks)
    assert min(rules[rule] for rule in ("value", "yes_no", "mentions")) > 40
    assert sum(check.task == "two_hops" for check in checks) > 20
    assert sum("|" in check.expected for check in checks if check.rule == "value") > 40


def test_who_is_known_by_name_is_not_unknown_without_it() -> None:
    """Where the boss is Anna, a question about "my boss" may be answered by what Anna does."""
    for seed in range(40):
        thread = Facts(Random(seed))
        for _ in range(80):
            question, answer = thread.step(0)
            own = re.search(r"\bmy (boss|friend|neighbour|cousin|aunt)\b", question.content)
            if answer.content != UNKNOWN or own is None:
                continue
            named = {fact.relation.noun for fact in thread.facts if fact.subject.kind == "self"}
            asks_for_name = re.search(r"(Who|What) is|called|know who", question.content)
            assert own[1] not in named or asks_for_name, question.content


def test_all_that_is_known_of_someone_is_told_or_not_asked_for() -> None:
    asked = 0
    for seed in range(12):
        thread = Facts(Random(seed))
        for _ in range(120):
            exchange = thread.step(0)
            question, answer = exchange[-2].content, exchange[-1].content
            if not re.search(
                r"(What do you know about|Tell me about|What about) [^?.]+[?.]$", question
            ):
                continue
            asked += 1
            assert thread.last is not None
            known = [fact for fact in thread.facts if fact.subject.key == thread.last.key]
            assert answer == " ".join(fact.answer() for fact in known)
            assert len(known) <= 3

    assert asked > 30


def test_made_up_words_are_polite() -> None:
    rng = Random(0)
    words = [lexicon.made_up(rng) for _ in range(3000)]
    codes = [lexicon.code(rng) for _ in range(3000)]

    assert all(lexicon.is_polite(word) for word in (*words, *codes))
    assert len(set(words)) > 2500
    assert not lexicon.is_polite("brassel")
    assert all(map(lexicon.is_polite, ("drosbroom", "leemsh", "grin", "kx41")))


def test_the_distance_of_what_is_asked_is_log_uniform() -> None:
    rng = Random(1)
    stated = list(range(0, 16000, 20))
    distances = [16000 - stated[place_to_ask(rng, stated, 16000)] for _ in range(4000)]

    middle = math.exp((math.log(20) + math.log(16000)) / 2)
    assert 0.45 < sum(distance < middle for distance in distances) / 4000 < 0.55
    assert max(distances) > 14000


def test_counts_are_right() -> None:
    turns = _talk(THREADS["counting"](Random(2), 500), 300)
    for question, answer in zip(turns[0::2], turns[1::2], strict=True):
        times = re.fullmatch(
            r"Count the word (\w+): (.*)|How many items .*: (.*)\?", question.content
        )
        if times is None:
            continue
        words = re.findall(r"\w+", times[2] or times[3])

        assert int(answer.content) == (words.count(times[1]) if times[1] else len(words))


def test_sums_are_right() -> None:
    turns = _talk(THREADS["sums"](Random(3), 500), 500)
    sums = [
        found
        for turn in turns[1::2]
        for found in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", turn.content)
    ]
    signs = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    two = [found for found in sums if found]

    assert len(two) > 250
    three = {turn.content for turn in turns[1::2] if turn.content.count("+") == 2}
    for turn in three:
        formula, result = turn.split(" = ")
        assert sum(map(int, formula.split(" + "))) == int(result)
    for turn in turns[1::2]:
        found = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", turn.content)
        if found:
            assert signs[found[2]](int(found[1]), int(found[3])) == int(found[4])


def test_questions_about_a_whole_text_have_the_answer_that_counting_gives() -> None:
    turns = _talk(THREADS["overview"](Random(5), 3000), 200)
    text = ""
    asked: Counter[str] = Counter()
    for question, answer in zip(turns[0::2], turns[1::2], strict=True):
        text = question.content if len(question.content) > 200 else text
        if answer.content == READ:
            continue
        words = Counter(re.findall(r"\w+", text.partition("\n")[0]))
        last = question.content.rpartition("\n")[2]
        often = re.search(r"the word (\w+)|times does (\w+)", last)
        if often:
            asked["often"] += 1
            assert words[often[1] or often[2]] == int(answer.content)
            continue
        kind = re.fullmatch(r"(?:Which|What is the most common) (\w+).*", last)
        if kind and kind[1] in _LISTS:
            asked["most"] += 1
            of_kind = Counter({word: words[word] for word in _LISTS[kind[1]]})
            [(most, times), (_, fewer)] = of_kind.most_common(2)
            assert answer.content == most
            assert times > 1.5 * fewer

    assert min(asked["often"], asked["most"]) > 30


def test_calls_fit_the_schemas_of_the_tools_that_are_there() -> None:
    rng = Random(6)
    calls = 0
    for _ in range(60):
        dialogue = tool_dialogue(rng, 400)
        schemas: dict[str, Any] = {tool["name"]: tool["parameters"] for tool in dialogue.tools}
        for turn in dialogue.turns:
            for call in turn.tool_calls:
                calls += 1
                jsonschema.validate(call.arguments, schemas[call.name])
                assert list(call.arguments) == list(schemas[call.name]["properties"])

    assert calls > 200


def test_a_call_takes_its_arguments_from_the_users_words_and_the_answer_from_the_result() -> None:
    rng = Random(8)
    for _ in range(60):
        dialogue = tool_dialogue(rng, 300)
        asked = ""
        for number, turn in enumerate(dialogue.turns):
            asked = turn.content if turn.role == "user" else asked
            for call in turn.tool_calls:
                assert all(str(value) in asked for value in call.arguments.values())
            if turn.check is not None:
                assert turn.check.passes(Reply(turn.content, turn.tool_calls)), (number, turn)


def test_json_answers_fit_the_schema_and_say_what_the_text_says() -> None:
    rng = Random(9)
    for _ in range(60):
        dialogue = schema_dialogue(rng, 300)
        assert dialogue.response_format is not None
        schema = dialogue.response_format["json_schema"]["schema"]
        for question, answer in zip(dialogue.turns[0::2], dialogue.turns[1::2], strict=True):
            value = json.loads(answer.content)
            jsonschema.validate(value, schema)

            assert list(value) == schema["required"]
            assert all(str(item) in question.content for item in value.values())


def test_an_article_fits_the_word_after_it() -> None:
    pattern = Pattern("A {animal} saw a {animal}.", {"animal": ("owl",)})

    assert pattern.fill(Random(0)) == "An owl saw an owl."
    assert not re.search(r"\b[aA] [aeiou]", prose(Random(1), 20_000))


def test_a_question_is_not_answered_by_chance_alone() -> None:
    """No single answer is right for more than a part of a task's questions."""
    for task in ("facts", "pairs", "needle", "sums", "counting", "overview"):
        turns = _talk(THREADS[task](Random(f"chance {task}"), 1500), 400)
        answers = Counter(turns[number].content for number, _ in _checked(turns))

        assert answers.most_common(1)[0][1] < 0.3 * answers.total(), task


def _exchange_text(exchange: Exchange) -> str:
    return " ".join(turn.content for turn in exchange)


def test_a_thread_says_the_same_for_the_same_seed() -> None:
    for make in THREADS.values():
        one, two = (make(Random("same"), 600) for _ in range(2))
        said = [[_exchange_text(thread.step(0)) for _ in range(40)] for thread in (one, two)]

        assert said[0] == said[1]
