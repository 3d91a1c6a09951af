"""Faults to plant in scheduler, tree, manager and wire, for as long as a context is entered."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec

import runtime.scheduler.distrust as distrust_module
import runtime.scheduler.plan_builder as plan_builder
import runtime.tokenizer.admitting as admitting
from mem_cache.tree.handles import Lock, Match
from mem_cache.tree.radix import ShadowRadixCache
from runtime.messages import Outputs
from runtime.scheduler.deadlines import Deadlines
from runtime.scheduler.distrust import Distrust
from runtime.scheduler.endings import Endings
from runtime.scheduler.kv_events import KvEvents
from runtime.scheduler.replica import Replica
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.row_units import Copies, RowUnits
from runtime.scheduler.settling import Settling
from runtime.scheduler.shares import FairShares
from runtime.tokenizer.choice import Choice
from runtime.tokenizer.manager import TokenizerManager
from tests.simulation.pipes import ManagerEnd, SchedulerEnd

__all__ = ["FAULTS", "planted"]

# (real method, its arguments) -> what the faulty one returns.
Faulty = Callable[..., Any]
FAULTS: dict[str, tuple[object, str, Faulty]] = {}


@contextmanager
def planted(name: str) -> Generator[None]:
    """Have a fault while this is entered."""
    owner, method, faulty = FAULTS[name]
    real = getattr(owner, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        return faulty(real, *args, **kwargs)

    with mock.patch.object(owner, method, call):
        yield


def _fault(owner: object, method: str) -> Callable[[Faulty], Faulty]:
    def note(faulty: Faulty) -> Faulty:
        FAULTS[faulty.__name__.strip("_").replace("_", " ")] = owner, method, faulty
        return faulty

    return note


def _nothing(*_: Any, **__: Any) -> None:
    """Do not do it."""


# --- pages, points, rows


@_fault(ShadowRadixCache, "lock")
def _lock_holds_a_page_too_few(real: Faulty, self: ShadowRadixCache, match: Match) -> Lock:
    above = int(self.arrays.page("parent")[match.node]) if match.node > 0 else 0
    if not above or match.point is not None:
        return real(self, match)
    return real(self, match._replace(node=above))


@_fault(Residency, "release")
def _page_in_use_is_given_back_at_an_end(
    real: Faulty, self: Residency, request: Request, **how: Any
) -> None:
    holding = request.holding
    if holding.num_pages - holding.shared_pages > 1:
        holding.num_pages -= 1
    real(self, request, **how)


@_fault(Endings, "_end")
def _abort_in_a_prompt_leaks_its_row(
    real: Faulty, self: Endings, request: Request, **how: Any
) -> None:
    leaks = bool(self._sets.prefills) and request in self._sets.prefills
    with mock.patch.object(Residency, "release", _nothing) if leaks else mock.MagicMock():
        real(self, request, **how)


@_fault(plan_builder, "_saves")
def _point_is_saved_a_position_early(real: Faulty, saves: list[Any]) -> Any:
    early = [
        (row, replace(save, position=save.position - 1) if save.position > 1 else save)
        for row, save in saves
    ]
    return real(early)


@_fault(plan_builder, "told_copies")
def _windows_are_not_copied(real: Faulty, copies: Copies) -> Any:
    copies.swa.clear()
    return real(copies)


@_fault(RowUnits, "give_back")
def _window_is_lost_with_its_row(real: Faulty, self: RowUnits, row: int) -> None:
    self._table.window[row, -1] = 0
    real(self, row)


@_fault(ShadowRadixCache, "peek")
def _replay_is_a_token_short(real: Faulty, self: ShadowRadixCache, *args: Any, **how: Any) -> Any:
    match = real(self, *args, **how)
    if not match.replays:
        return match
    return match._replace(start=match.start + 1)


# --- numbers that are not finite


@_fault(Settling, "_take_chunk")
def _chunk_is_published_unseen(
    real: Faulty, self: Settling, request: Request, end: int, tokens: Any, entry: Any, _: int
) -> None:
    real(self, request, end, tokens, entry, 1)


FAULTS["bad end of an answer stays in the tree"] = Distrust, "end", lambda *_: 0


@_fault(distrust_module, "below")
def _pages_below_one_set_aside_are_not_told(real: Faulty, cache: Any, node: int) -> list[int]:
    return [node]


# --- ends, tokens, shares

FAULTS["deadlines are not kept"] = Deadlines, "expire", _nothing
FAULTS["tokens are not charged"] = FairShares, "charge", _nothing


@_fault(Replies, "finish")
def _end_is_told_twice(real: Faulty, self: Replies, *args: Any, **how: Any) -> None:
    real(self, *args, **how)
    real(self, *args, **how)


@_fault(RequestSets, "requeue")
def _retracted_request_forgets_a_token(real: Faulty, self: RequestSets, request: Request) -> None:
    if request.output_tokens:
        request.total -= 1
    real(self, request)


@_fault(RequestSets, "suspend")
def _suspended_request_keeps_its_share(real: Faulty, self: RequestSets, request: Request) -> None:
    with mock.patch.object(FairShares, "stop", _nothing):
        real(self, request)


@_fault(Settling, "_take_first_token")
def _twin_gets_the_token_of_another_row(
    real: Faulty, self: Settling, twin: Request, tokens: Any, _: int
) -> None:
    real(self, twin, tokens, 0)


@_fault(Replica, "abort")
def _abort_is_ignored_while_it_waits(real: Faulty, self: Replica, ids: list[int]) -> None:
    real(self, [i for i in ids if i not in self.sets.waiting])


@_fault(KvEvents, "inserted")
def _event_is_lost(real: Faulty, self: KvEvents, insertion: Any, namespace: str) -> None:
    pending = len(self._pending)
    real(self, insertion, namespace)
    if len(insertion.pages) == 3:
        del self._pending[pending:]


# --- manager and wire


@_fault(admitting, "make_requests")
def _salt_is_left_out(real: Faulty, *args: Any, **how: Any) -> Any:
    return [msgspec.structs.replace(request, namespace="") for request in real(*args, **how)]


@_fault(admitting, "make_requests")
def _all_choices_have_one_seed(real: Faulty, *args: Any, **how: Any) -> Any:
    requests = real(*args, **how)
    return [msgspec.structs.replace(r, sampling=requests[0].sampling) for r in requests]


FAULTS["refusal is not passed on"] = TokenizerManager, "_refused", _nothing


@_fault(Choice, "take")
def _merged_news_lose_a_token(real: Faulty, self: Choice) -> Any:
    delta = real(self)
    if len(delta.token_ids) > 2:
        del delta.token_ids[1]
    return delta


@_fault(Choice, "take")
def _usage_at_an_end_is_one_too_many(real: Faulty, self: Choice) -> Any:
    delta = real(self)
    delta.completion_tokens += delta.finish is not None
    return delta


@_fault(TokenizerManager, "leave")
def _label_of_a_call_that_is_gone_stays(real: Faulty, self: TokenizerManager, group: Any) -> None:
    labels = dict(self._labels)
    real(self, group)
    self._labels.update(labels)


@_fault(ManagerEnd, "send")
def _message_to_the_scheduler_is_lost(real: Faulty, self: ManagerEnd, message: Any) -> None:
    self.sent = getattr(self, "sent", 0) + 1  # pyright: ignore[reportAttributeAccessIssue]
    if self.sent % 23:  # pyright: ignore[reportAttributeAccessIssue]
        real(self, message)


@_fault(SchedulerEnd, "send")
def _news_of_one_request_are_lost(real: Faulty, self: SchedulerEnd, message: Any) -> None:
    if isinstance(message, Outputs) and len(message.items) > 2:
        message = Outputs(message.items[:-1])
    real(self, message)


@_fault(SchedulerEnd, "send")
def _cached_tokens_are_one_too_many(real: Faulty, self: SchedulerEnd, message: Any) -> None:
    if isinstance(message, Outputs):
        items = [
            msgspec.structs.replace(item, cached_tokens=item.cached_tokens + 1)
            if item.cached_tokens > 3
            else item
            for item in message.items
        ]
        message = Outputs(items)
    real(self, message)


@_fault(plan_builder, "_line_sampling")
def _tokens_are_forbidden_for_too_long(real: Faulty, request: Request) -> Any:
    sampling = real(request)
    least = sampling.min_new_tokens
    return msgspec.structs.replace(sampling, min_new_tokens=least + 9 if least else 0)
