"""What the scheduler needs to know of flags and model, resolved."""

from dataclasses import dataclass

from runtime.scheduler.queue import Policy


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Bytes of units, and how many of them replicas copy from each other in one step.

    step_bytes  of each step at most, but for one page with its point. While it copies, a rank takes
                up to three times as many of the memory that a step's activations have later
    """

    page_bytes: int = 1
    swa_page_bytes: int = 1
    state_bytes: int = 1
    step_bytes: int = 64 << 20

    def of_point(self, swa_pages: int) -> int:
        """Return the bytes of a resume point with so many SWA pages."""
        return swa_pages * self.swa_page_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits and policies of one scheduler.

    context_tokens    longest prompt plus output; also no more than the full pages hold
    eos_token_ids     the model's own end tokens
    max_logit_rows    prompt positions whose logits one step may compute
    step_context      tokens before and in the chunks of one prefill step, where more rows than
                      one take part; None: no limit
    step_samples      rows that one prefill step may sample; None: no limit
    max_queued_tokens that the prompts of waiting requests may have left to compute; None: no limit
    priority_aging_s  waiting that counts as one priority more; 0: none does
    queue_timeout_s   how long a request may wait for its first row; None: for ever
    request_timeout_s how long it may take in all; None: as long as it takes
    idle_poll_s       how long an idle loop waits for a message
    overlap           launch a step before the one before it is settled; rows are fed with tokens
                      that only the executor has (`Rows.from_device`)
    copies            between replicas
    """

    context_tokens: int
    eos_token_ids: tuple[int, ...]
    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    priority_aging_s: float = 0.0
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    chunked_prefill_size: int = 2048
    schedule_policy: Policy = "lpm"
    check_every_step: bool = False
    decode_log_interval: int = 40
    max_logit_rows: int = 4096
    step_context: int | None = None
    step_samples: int | None = None
    idle_poll_s: float = 0.1
    overlap: bool = False
    copies: CopyLimits = CopyLimits()
