"""The dashboard's file is what its source says, and can be drawn."""

import json
from itertools import combinations
from typing import Any

from runtime.server.dashboard import DASHBOARD, dashboard, written

PANELS: list[dict[str, Any]] = dashboard()["panels"]


def test_the_file_is_up_to_date() -> None:
    text = DASHBOARD.read_text("utf-8")

    assert text == written(), "run: python -m runtime.server.dashboard"
    assert json.loads(text) == dashboard()


def test_no_panel_covers_another() -> None:
    places = [panel["gridPos"] for panel in PANELS]

    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert max(place["x"] + place["w"] for place in places) <= 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_every_query_asks_the_chosen_source_for_the_chosen_servers() -> None:
    names = {item["name"] for item in dashboard()["templating"]["list"]}

    assert names == {"datasource", "instance", "replica"}
    for panel in PANELS:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            selectors = target["expr"].count("{")
            assert selectors == target["expr"].count('instance=~"$instance",replica=~"$replica"')
