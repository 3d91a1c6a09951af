"""One of each message, no field of which has its default."""

from runtime.wire.arrays import FLOAT32, INT32, INT64, UINT8, packed
from runtime.wire.step import (
    JOINT_VERSION,
    VERSION,
    Copies,
    EntryLogprobs,
    Exchange,
    Failure,
    Join,
    Joint,
    KeptResult,
    LineSampling,
    Mask,
    PackedLogprobs,
    PromptSpan,
    Rows,
    Sample,
    SampleKept,
    Saves,
    StepPlan,
    StepResult,
    TableChanges,
    UnitTransfer,
)

_SAMPLING = LineSampling(
    seed=2**64 - 1,
    prompt_tokens=2,
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    min_new_tokens=4,
    prompt=packed([5, 6], INT32),
    output=packed([7], INT32),
    bias_ids=packed([8], INT32),
    bias_values=packed([-1.5], FLOAT32),
    stop_ids=packed([9], INT32),
    constrained=True,
    top_logprobs=2,
    logprob_ids=packed([10], INT32),
)
_MASK = Mask(line=0, words=packed([-1, 7], INT32))
_LOGPROBS = PackedLogprobs(
    top=1,
    ids=packed([11], INT32),
    values=packed([-0.5, -0.5], FLOAT32),
    best=packed([11], INT32),
)
SAMPLE = Sample(step=12, masks=[_MASK], keep=packed([3], INT32), rank=1)
PLAN = StepPlan(
    version=VERSION,
    step=12,
    changes=TableChanges(
        left=packed([1], INT32),
        pages=packed([0, 0, 4], INT32),
        windows=packed([0, 0, 5], INT32),
        states=packed([0, 6], INT32),
    ),
    joins=[Join(line=0, sampling=_SAMPLING)],
    copies=Copies(
        pages=packed([1, 2], INT32), windows=packed([3, 4], INT32), states=packed([5, 6, 7], INT32)
    ),
    rows=Rows(
        line=packed([0], INT32),
        start=packed([2**40], INT64),
        count=packed([2], INT32),
        ids=packed([13, 14], INT32),
        from_device=packed([1], UINT8),
        drafts=packed([1], INT32),
        window_from=packed([3], INT64),
        write_from=packed([4], INT64),
    ),
    saves=Saves(
        row=packed([0], INT32),
        position=packed([2**40 + 1], INT64),
        state=packed([7], INT32),
        window=packed([8], INT32),
    ),
    sampled=packed([0, 0], INT32),
    spans=[PromptSpan(row=0, start=1, targets=packed([15], INT32), top=1, ids=b"\1\0\0\0")],
    sampling=SAMPLE,
)
JOINT = Joint(
    version=JOINT_VERSION,
    step=12,
    sections=[None, PLAN],
    exchange=Exchange(
        step=12,
        early=[Copies(), Copies(pages=bytes(8))],
        transfers=[UnitTransfer(0, 1, pages=bytes(16), windows=bytes(8), states=bytes(8))],
    ),
)
SAMPLE_KEPT = SampleKept(call=16, lines=packed([3], INT32), masks=[_MASK], rank=1)
RESULT = StepResult(
    step=12,
    finite=packed([1], UINT8),
    accepted=packed([1], INT32),
    tokens=packed([17], INT32),
    failures=[Failure(entry=0, reason="logits are not finite")],
    logprobs=[EntryLogprobs(entry=0, logprobs=_LOGPROBS)],
    spans=[_LOGPROBS],
)
KEPT_RESULT = KeptResult(
    call=16,
    accepted=packed([1], INT32),
    tokens=packed([17], INT32),
    failures=[Failure(entry=0, reason="no mask")],
    logprobs=[EntryLogprobs(entry=0, logprobs=_LOGPROBS)],
)
