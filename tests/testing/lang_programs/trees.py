"""Programs that fork: tips, chains, judges, documents, trees of chats."""

from runtime.lang.program import function
from runtime.lang.script import Forks
from runtime.lang.state import State
from runtime.lang.words import assistant, gen, user, user_begin, user_end
from tests.testing.lang_programs.case import Case
from tests.testing.lang_programs.texts import SHOTS

METRICS = ("Content: what the essay says.", "Structure: how it is built.", "Form: its grammar.")
HINTS = ("Let us think step by step.", "Take a deep breath.", "I am good at this.")


@function
def parallel_tips(s: State, topic: str) -> None:
    s += "Act as a helpful assistant.\nUSER: Give some tips for " + topic + ".\n"
    s += "ASSISTANT: Okay. Here are " + str(3) + " concise tips, each under 8 words:\n"
    for i in range(1, 4):
        s += f"{i}." + gen(max_tokens=4, stop=[".", "\n"]) + ".\n"
    forks = s.fork(3)
    for i in range(3):
        forks[i] += f"Now, I expand tip {i + 1} into a detailed paragraph:\nTip {i + 1}:"
        forks[i] += gen("detailed_tip", 8, stop=["\n\n"])
    forks.join()
    s += "Here are these tips with detailed explanation:\n"
    for i in range(3):
        s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"
    s += "\nIn summary," + gen("summary", max_tokens=8)


@function
def two_tips(s: State) -> None:
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += gen("detailed_tip", max_tokens=8, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + gen("summary")


@function
def statements(s: State, question: str, contexts: list[str]) -> None:
    s += "USER: I will ask a question based on some statements.\nASSISTANT: Sure.\n"
    forks = s.fork(len(contexts), [1000 * i for i in range(len(contexts))])
    forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
    forks.join(mode="concate_and_append")
    s += "Now, please answer the following question.\nQuestion: " + question + "\n"
    s += "ASSISTANT:" + gen("answer", max_tokens=8)


@function
def documents(s: State, docs: list[str], question: str) -> None:
    s += user_begin()
    s += "Please answer a question according to given documents.\n"
    s += "Question:" + question + "Documents begin.\n"
    forks = s.fork(len(docs))
    forks += lambda i: docs[i]
    forks.join("concate_and_append")
    s += "\nDocuments end.\n\nBased on the above documents, please answer this question:\n"
    s += question + "\nAnswer in three words or fewer."
    s += user_end()
    s += assistant(gen("answer", max_tokens=8))


@function
def chains(s: State, question: str) -> None:
    s += SHOTS + "Question: " + question + "\n"
    forks = s.fork(len(HINTS))
    for i in range(len(HINTS)):
        forks[i] += "Answer: " + HINTS[i] + gen("chain", max_tokens=8, stop="Question")
    forks.join()
    s += "Answer: Here are some possible solutions.\n\n"
    for i in range(len(HINTS)):
        s += f"Solution {i + 1}: " + forks[i]["chain"].strip() + "\n\n"
    s += "By a majority vote, I think the answer is " + gen("answer", max_tokens=4)


@function
def judge(s: State, article: str) -> None:
    s += "Please serve as an impartial judge of the following article."
    s += "\n```\n" + article + "\n```\n\n"
    forks = s.fork(len(METRICS))
    for i in range(len(METRICS)):
        forks[i] += "USER: Judge it by this metric. " + METRICS[i] + " Say END.\nJUDGE:"
        forks[i] += gen("judgement", max_tokens=8, stop="END")
    forks.join()
    for i in range(len(METRICS)):
        s += METRICS[i].split(":")[0] + ": " + forks[i]["judgement"].strip() + "\n"
    s += "In summary, I would give it a score of" + gen("score", max_tokens=2)


@function
def expand_tip(s: State, topic: str, tip: str) -> None:
    s += SHOTS + "Please expand a tip for a topic into a paragraph.\n\nTopic: " + topic
    s += "\nTip: " + tip + "\nParagraph:"
    s += gen("paragraph", max_tokens=8, stop=["\n\n"], temperature=0)


@function
def suggest_tips(s: State, topic: str) -> None:
    s += "Please act as a helpful assistant and give tips.\nUSER: Tips for " + topic + ".\n"
    paragraphs: list[State] = []
    for i in range(1, 4):
        s += f"{i}." + gen(f"tip_{i}", max_tokens=4, stop=[".", "\n"]) + ".\n"
        paragraphs.append(expand_tip(topic=topic, tip=s[f"tip_{i}"], backend=s.executor.backend))
    for i in range(1, 4):
        s += f"Tip {i}:" + paragraphs[i - 1]["paragraph"] + "\n"


@function
def samples(s: State, question: str, n: int) -> None:
    s += "Question: Compute 1 + 2 + 3\nReasoning: I need to use a calculator.\nAnswer: 6\n"
    s += "Question: " + question + "\n"
    forks = s.fork(n)
    forks += "Reasoning:" + gen("reasoning", stop="\n") + "\n"
    forks += "Tool:" + gen("tool", choices=["calculator", "browser"]) + "\n"
    forks += "Answer:" + gen("answer", stop="\n") + "\n"
    forks.join()


@function
def replayed(s: State, question: str, triplets: list[dict[str, str]]) -> None:
    s += SHOTS + question
    for i in range(1, len(triplets) + 2):
        s += "Thought " + str(i) + ":"
        ss = s.fork(1)
        ss[0] += gen(name="thought_action", max_tokens=8, stop="Observation")
        ss.join()
        if i > len(triplets):
            break
        s += triplets[i - 1]["thought"] + "\nAction " + str(i) + ":" + triplets[i - 1]["action"]


@function
def sweep(s: State, context: str, companies: dict[str, str]) -> None:
    s += context + "\n"
    forks = s.fork(len(companies))
    for i, (name, facts) in enumerate(companies.items()):
        forks[i] += f"--- Company: {name} ---\n{facts}\n\n"
        forks[i] += gen(f"analysis_{name}", max_tokens=8, stop="\n\n", temperature=0.3)
    s += "Analyses gathered:\n"
    for i, name in enumerate(companies):
        s += f"\n[{name}] " + forks[i][f"analysis_{name}"]
    s += "\n\nFinal ranking:\n" + gen("pick", max_tokens=8, temperature=0.2)


def asked(s: State, text: str, name: str, branches: int) -> "Forks[State]":
    s += user(text)
    forks = s.fork(branches)
    forks += assistant(gen(name, max_tokens=6, temperature=0.001))
    return forks


@function
def tree_search(s: State, question: str, branches: int) -> list[list[str]]:
    plans = asked(s, "Please make a plan for this question: " + question, "plan", branches)
    solved = [f for plan in plans for f in asked(plan, "Now do it.", "answer", branches)]
    scored = [f for sol in solved for f in asked(sol, "Rate it from 1 to 5.", "score", branches)]
    return [[fork.text() for fork in asked(sol, "So?", "final", 1)] for sol in scored]


CASES = {
    "parallel tips": Case(parallel_tips, [{"topic": "a good post"}]),
    "two tips": Case(two_tips),
    "statements": Case(
        statements,
        [{"question": "Where is Tom?", "contexts": ["Tom is in Lima.", "Anna is in Rome."]}],
    ),
    "documents": Case(
        documents,
        [
            {"docs": ["Tom is in Lima. ", "Anna is in Rome. "], "question": f"Where is {name}? "}
            for name in ("Tom", "Anna")
        ],
    ),
    "chains": Case(chains, [{"question": "What is 12 + 30?"}]),
    "judge": Case(judge, [{"article": f"Oslo has {k} degrees today."} for k in (7, 8)]),
    "suggest tips": Case(suggest_tips, [{"topic": "writing"}]),
    "samples": Case(samples, [{"question": "Compute 5 + 2.", "n": 3}], {"temperature": 1.0}),
    "replayed": Case(
        replayed,
        [
            {
                "question": f"Who is {n}?\n",
                "triplets": [{"thought": " I ask.", "action": " Ask.\n"}],
            }
            for n in ("Tom", "Anna")
        ],
    ),
    "sweep": Case(sweep, [{"context": SHOTS, "companies": {"A": "It bakes.", "B": "It sings."}}]),
    "tree search": Case(tree_search, [{"question": "What is 12 + 30?", "branches": 2}]),
}
