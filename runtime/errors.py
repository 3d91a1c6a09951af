"""Exceptions of the runtime.

    RuntimeFault             ours: the process says so and stops, the launcher stops the rest
    ├─ WorkerDied            a process died or stopped answering
    └─ ConfigError           flags or checkpoint that cannot be served
       └─ MemoryShortage     a device has too little memory for them
    RequestError             theirs: becomes a reply with an HTTP status
    ├─ BadRequest            400 a field is missing, malformed or out of range
    │  ├─ PromptTooLong      400 prompt, or prompt and new tokens, exceed what can ever fit
    │  ├─ BadSampling        400 a sampling field is out of range
    │  └─ GrammarError       400 a schema, pattern or grammar that cannot be served
    ├─ Unauthorized          401 missing or wrong API key
    ├─ NotFound              404 no such model or request
    ├─ QueueFull             429 the bounded queue is full; carries Retry-After
    ├─ Aborted               499 the request was aborted
    ├─ Unavailable           503 draining, no row in time, or the scheduler is gone; may carry
    │                        Retry-After
    ├─ TimedOut              504 the time for the request was over before its first token
    └─ RequestFailed         500 this request alone failed inside the engine

`mem_cache` has its own IntegrityError and OutOfPages, `jit_kernels` ShapeError and
BackendUnavailable: each floor defines what it raises.
"""

from layers.fault_text import bounded


class RuntimeFault(Exception):
    """A fault of the server itself; it ends the process."""


class WorkerDied(RuntimeFault):
    """A process of the server died or stopped answering."""


class ConfigError(RuntimeFault):
    """Flags or a checkpoint that cannot be served."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


class MemoryShortage(ConfigError):
    """A device, or the host, has too little memory for what flags and checkpoint ask."""


class RequestError(Exception):
    """A fault of one request; it becomes that request's reply.

    status  HTTP status
    kind    `type` of the OpenAI error body
    param   name of the offending field, if one is to blame
    code    machine-readable code of the OpenAI error body, if any
    """

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class BadRequest(RequestError):
    """A field is missing, malformed or out of range."""

    status = 400
    kind = "invalid_request_error"


class PromptTooLong(BadRequest):
    """The prompt, or the prompt and its new tokens, can never fit."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class BadSampling(BadRequest):
    """A sampling field is out of range."""

    def __init__(self, field: str, expected: str, got: object) -> None:
        shown = repr(got)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{field} must be {expected}, got {shown}", param=field)


class GrammarError(BadRequest):
    """A schema, pattern or grammar that is wrong, too costly, or cannot be enforced."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="invalid_grammar")


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class NotFound(RequestError):
    """There is no such model or request."""

    status = 404
    kind = "not_found_error"


class QueueFull(RequestError):
    """The bounded queue is full.

    retry_after_s  whole seconds for the Retry-After header
    """

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="queue_full")
        self.retry_after_s = retry_after_s


class Aborted(RequestError):
    """The request was aborted before it finished."""

    status = 499
    kind = "aborted"


class Unavailable(RequestError):
    """The server is draining, no row was free in time, or its scheduler is gone.

    retry_after_s  whole seconds for the Retry-After header; None: nobody knows
    """

    status = 503
    kind = "service_unavailable"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TimedOut(RequestError):
    """The time that the request may take was over before its first token."""

    status = 504
    kind = "timeout_error"


class RequestFailed(RequestError):
    """This request failed inside the engine; others go on."""
