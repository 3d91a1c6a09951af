"""A prompt as it grows from call to call: token ids, and the chat messages they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.serving.outcome import Outcome
from tests.bench.serving.workload import Call

# One token each, with the blank before it, in about every vocabulary.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member "
    "law car city community name team minute idea body information back parent face others level "
    "office door health person art war history party result change morning reason research girl "
    "guy moment air teacher force order market sense nation plan college interest death course "
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Prompt:
    """Everything said so far.

    ids       token ids; for a chat they are words, and only the ideal hit rate is made of them
    messages  the same as (role, text)
    """

    ids: list[int]
    messages: list[tuple[str, str]]

    @classmethod
    def begin(cls, call: Call) -> "Prompt":
        """Return the prompt of a call that goes on from nothing."""
        messages = [("system", spell(call.system))] if call.system else []
        return cls([*call.system, *call.user], [*messages, ("user", spell(call.user))])

    def go_on(self, answer: Sequence[int], text: str, call: Call) -> "Prompt":
        """Return the prompt of a call that goes on from `answer`, which reads `text`."""
        messages = [*self.messages, ("assistant", text), ("user", spell(call.user))]
        return Prompt([*self.ids, *answer, *call.user], messages)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it was sent, and what came of it.

    answer_ids  what a cache that keeps answers knows of this one; empty where nobody can say
    """

    call: Call
    prompt: Prompt
    outcome: Outcome
    answer_ids: Sequence[int]


def spell(ids: Sequence[int]) -> str:
    """Return a text of as many words as there are ids."""
    return " ".join(WORDS[token_id % len(WORDS)] for token_id in ids)
