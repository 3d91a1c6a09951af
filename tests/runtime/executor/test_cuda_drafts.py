"""Rows with drafts on the network of CUDA devices: the tokens of steps without any."""

import random
from pathlib import Path

import pytest

from runtime.executor.cuda_runner import CudaModelRunner
from tests.testing.fused_rig import FusedRig
from tests.testing.plans import PlannedRow, Plans, entry_tokens, line_sampling

pytestmark = pytest.mark.usefixtures("dense_weights_once")

DRAFTS = 7
LENGTHS = (30, 125, 254)
LINES = len(LENGTHS)
DRAWN = line_sampling(temperature=1.0, seed=8)


@pytest.fixture(scope="module")
def strict(short_folder: Path) -> FusedRig:
    """A deterministic network: elsewhere a token's bits depend on the tokens beside it."""
    return FusedRig(short_folder, deterministic=True, draft_tokens=DRAFTS)


class Driver:
    """A runner, and the plans that it is sent."""

    def __init__(self, rig: FusedRig) -> None:
        self.plans = Plans(rig.tree, lines=LINES)
        self.runner: CudaModelRunner = rig.runner(4)
        draw = random.Random(5)
        prompts = [draw.choices(range(2, 500), k=length) for length in LENGTHS]
        rows = [PlannedRow(line, 0, prompt) for line, prompt in enumerate(prompts)]
        joins = dict.fromkeys(range(LINES), DRAWN)
        self.tokens = entry_tokens(self.runner.run(self.plans.plan(*rows, joins=joins)))

    def row(self, line: int, drafts: list[int]) -> PlannedRow:
        """Return a line's next row."""
        said = self.tokens[line]
        start = LENGTHS[line] + len(said) - 1
        return PlannedRow(line, start, [said[-1], *drafts], drafts=len(drafts))


def guesses(true: list[int], right: int) -> list[int]:
    """Return drafts for what is sampled, the first `right` of them right."""
    return [token if k < right else token ^ 1 for k, token in enumerate(true)]


def plainly(rig: FusedRig, count: int) -> list[list[int]]:
    """Return `count` tokens of each line, one step each, by graphs."""
    driver = Driver(rig)
    while len(driver.tokens[0]) < count:
        rows = [driver.row(line, []) for line in range(LINES)]
        result = driver.runner.run(driver.plans.plan(*rows))
        for said, new in zip(driver.tokens, entry_tokens(result), strict=True):
            said += new
    return driver.tokens


def test_any_number_of_drafts_beside_others_changes_no_token(strict: FusedRig) -> None:
    plain = plainly(strict, 40)
    driver, draw = Driver(strict), random.Random(3)
    assert driver.tokens == [said[:1] for said in plain]
    while min(map(len, driver.tokens)) < 20:
        rows, rights = list[PlannedRow](), list[int]()
        for line, said in enumerate(driver.tokens):
            # None in all rows, too: such a step is decoded.
            count = draw.choice([0, 1, 3, DRAFTS]) if draw.random() < 0.8 else 0
            right = draw.randint(0, count)
            true = plain[line][len(said) : len(said) + count]
            rows.append(driver.row(line, guesses(true, right)))
            rights.append(right)

        result = driver.runner.run(driver.plans.plan(*rows))

        runs = entry_tokens(result)
        assert [len(run) for run in runs] == [right + 1 for right in rights]
        for said, run in zip(driver.tokens, runs, strict=True):
            said += run

    assert driver.tokens == [p[: len(said)] for p, said in zip(plain, driver.tokens, strict=True)]


def test_lengths_that_only_the_executor_knows_are_waited_for(strict: FusedRig) -> None:
    plain = plainly(strict, 40)
    driver = Driver(strict)
    at, bound, steps = 1, LENGTHS[0], []
    for k, (count, right) in enumerate([(7, 2), (3, 3), (1, 0), (7, 7), (5, 1)]):
        drafts = guesses(plain[0][at : at + count], right)
        row = PlannedRow(0, bound, [0, *drafts], from_device=2 if k else 1, drafts=count)
        steps.append(driver.runner.launch(driver.plans.plan(row)))
        at, bound = at + right + 1, bound + count + 1

    said = [token for step in steps for token in entry_tokens(step.result())[0]]
    assert driver.tokens[0] + said == plain[0][:at]
