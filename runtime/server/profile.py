"""Profiles of the running scheduler: `/start_profile` and `/stop_profile`, as SGLang has them.

Traces are written where the operator said at the start (`--profile-dir`), or not at all; see
`runtime.executor.step_profiler`.
"""

from typing import Annotated, ClassVar, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest
from runtime.profile_messages import MAX_PROFILE_STEPS, Profiled, StartProfile
from runtime.server.body import read_body
from runtime.server.field_hints import FieldHints, HintedBody
from runtime.server.known_elsewhere import PROFILE
from runtime.server.replies import json_reply
from runtime.server.service import Service

_Steps = Annotated[int, msgspec.Meta(ge=1, le=MAX_PROFILE_STEPS)]
_Step = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
_Folder = Annotated[str, msgspec.Meta(max_length=1000)]


class ProfileBody(HintedBody, frozen=True):
    """`/start_profile`; every field may be left out.

    output_dir  a folder below that of `--profile-dir`
    start_step  number of the first step traced, counted from the server's start
    activities  by default both, as far as they are there
    """

    elsewhere: ClassVar[FieldHints] = PROFILE

    output_dir: _Folder | None = None
    start_step: _Step | None = None
    num_steps: _Steps | None = None
    activities: list[Literal["CPU", "GPU"]] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None


class ProfileRoutes:
    """Handlers of `/start_profile` and `/stop_profile`."""

    def __init__(self, service: Service) -> None:
        self._manager = service.manager

    async def start(self, request: Request) -> Response:
        """Trace steps, each rank into a file that is told. Raises BadRequest where refused."""
        body = await read_body(request, ProfileBody)
        wanted = body.activities or ["CPU", "GPU"]
        question = StartProfile(
            0,
            folder=body.output_dir or "",
            first_step=body.start_step or 1,
            steps=body.num_steps,
            cpu="CPU" in wanted,
            gpu="GPU" in wanted,
            stacks=bool(body.with_stack),
            shapes=bool(body.record_shapes),
        )
        profiled = await self._manager.start_profile(question)
        return _reply(profiled, "the profile was not started")

    async def stop(self, request: Request) -> Response:
        """End the trace; replies when all files are there. Raises BadRequest if there is none."""
        profiled = await self._manager.stop_profile()
        return _reply(profiled, "nothing was stopped")


def _reply(profiled: Profiled, refused: str) -> Response:
    if not profiled.done:
        raise BadRequest(f"{refused}: {profiled.message}")
    files = profiled.files or [file for file in [profiled.file] if file]
    told = {"message": profiled.message, "file": profiled.file or None, "files": files}
    return json_reply(told)
