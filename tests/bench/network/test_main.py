"""Both measurements from end to end on a small network, and the command line."""

from dataclasses import replace

import pytest
import torch

from layers.models.deepseek_v4.model import QuantisedV4
from layers.weights.loading import fill_dummy
from tests.bench.network.__main__ import kept_form, parse
from tests.bench.network.decode import Context, measure_decode
from tests.bench.network.floor import dense_bytes, kv_bytes, one_expert_bytes
from tests.bench.network.prefill import measure_prefill
from tests.bench.network.small_network import SMALL, network

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_decode_is_measured_against_the_experts_that_were_routed_to() -> None:
    made = network()
    context = Context(made, tokens=300, rows=3, replays=4, chunk=200, longest=1000)

    figures = measure_decode(context, 3, form="both", bandwidth=1e9)

    assert (figures.rows, figures.tokens, figures.chunk) == (3, 300, None)
    touched = figures.experts_a_layer
    assert touched is not None
    assert 2 <= touched <= 6
    read = dense_bytes(made) + 3 * kv_bytes(SMALL, context.pools.spec, 300)
    read += touched * SMALL.num_hidden_layers * one_expert_bytes(SMALL, "fp4")
    assert figures.floor_ms == pytest.approx(read / 1e6)
    assert figures.kv_floor_ms == pytest.approx(3 * kv_bytes(SMALL, context.pools.spec, 300) / 1e6)
    assert not figures.deterministic


def test_a_context_has_room_for_no_more_rows_than_were_asked_for() -> None:
    context = Context(network(), tokens=130, rows=2, replays=1, chunk=128)

    with pytest.raises(ValueError, match="room for 2 rows, 3 are wanted"):
        context.decoder(3)


def test_a_context_ends_where_the_positions_of_the_network_do() -> None:
    with pytest.raises(ValueError, match="the network has 1048576 positions"):
        Context(network(), tokens=1_048_570, rows=1, replays=1, chunk=8192)


def test_a_deterministic_network_is_measured_and_said_to_be_one() -> None:
    one_layer = replace(SMALL, num_hidden_layers=1, compress_ratios=(0,))
    made = QuantisedV4(one_layer, torch.device("cpu"), experts="both", deterministic=True)
    fill_dummy(made, 3)
    options = parse(["decode", "--deterministic"])

    context = Context(made, tokens=4, rows=1, replays=1, chunk=8)
    decoded = measure_decode(context, 1, form=kept_form(options), bandwidth=1e9)
    prefilled = measure_prefill(made, prompt=4, rows=1, chunk=8, form=kept_form(options), repeats=1)

    assert (decoded.deterministic, prefilled.deterministic) == (True, True)
    assert decoded.experts == prefilled.experts == "fp4"


def test_decoding_goes_on_by_a_position_a_step() -> None:
    decoder = Context(network(), tokens=130, rows=2, replays=1, chunk=128).decoder(2)

    decoder.step()
    decoder.step()

    assert decoder.rows.position.tolist() == [132, 132]


def test_prefill_is_measured_in_tokens_of_all_prompts() -> None:
    figures = measure_prefill(network(), prompt=150, rows=2, chunk=200, form="fp8", repeats=1)

    assert figures.tokens_per_s == pytest.approx(300 / figures.ms * 1e3)
    assert (figures.rows, figures.tokens, figures.chunk, figures.share) == (2, 150, 200, None)


def test_the_command_line_has_two_phases_and_a_profile_of_either() -> None:
    decode = parse(["decode", "--batch", "1", "64", "--context", "8192", "--experts", "fp4"])
    profile = parse(["profile", "prefill", "--prompt", "8192", "--deterministic"])

    assert (decode.phase, decode.profile, decode.batch) == ("decode", False, [1, 64])
    assert (profile.phase, profile.profile, profile.chunk) == ("prefill", True, [8192])
    assert (decode.deterministic, profile.deterministic) == (False, True)
    with pytest.raises(SystemExit):
        parse(["train"])
