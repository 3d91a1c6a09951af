"""Ray Serve's request router: it places requests by the board, in the front's process."""

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

import runtime.replicas.desk as shared
from runtime.replicas.event_follower import EventFollower, EventSource
from runtime.replicas.upstream import HttpRequest

__all__ = ["PrefixRouter"]


class PrefixRouter(RequestRouter):
    """Sends a request where its prefix is cached; follows the cache events of all replicas."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without replicas."""
        self._followers: dict[str, EventFollower] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica for a request; the others are the fallback if it does not answer."""
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        request = pending_request.args[0] if pending_request and pending_request.args else None
        if not isinstance(request, HttpRequest) or not named:
            return [candidate_replicas]
        routed, avoid = shared.DESK.to_place.get(request.number, (None, ()))
        if request.replica is not None:
            if routed is not None and routed.keys is not None and request.replica in named:
                shared.DESK.board.place(routed, [request.replica])
            # Any other replica answers that this one is gone.
            return [[named.get(request.replica, candidate_replicas[0])]]
        if routed is None:
            return [candidate_replicas]
        chosen = shared.DESK.board.place(routed, list(named), avoid=avoid)
        others = [replica for name, replica in named.items() if name != chosen]
        return [[named[chosen]], others]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Count a request where it really went."""
        request = pending_request.args[0] if pending_request.args else None
        if not isinstance(request, HttpRequest):
            return
        routed, _ = shared.DESK.to_place.get(request.number, (None, ()))
        if routed is not None and routed.replica not in (None, replica_id.unique_id):
            shared.DESK.board.place(routed, [replica_id.unique_id])

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Follow the events of replicas that are new, and forget those that are gone."""
        self._keep({r.replica_id.unique_id: r.routing_stats for r in replicas})
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica."""
        super().on_replica_actor_died(replica_id)
        living = self.curr_replicas.values()
        self._keep({r.replica_id.unique_id: r.routing_stats for r in living})

    def _keep(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        shared.DESK.board.keep(facts.keys())
        for gone in self._followers.keys() - facts.keys():
            self._followers.pop(gone).close(wait=False)
        for name, told in facts.items():
            if "endpoint" in told and name not in self._followers:
                shared.DESK.facts.update(told)
                source = EventSource(told["endpoint"], told["replay_endpoint"])
                self._followers[name] = EventFollower(name, source, shared.DESK.board)
