"""The named loads and lengths of `bench`, and the charts of what was measured."""

import re
import struct
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mindspore_serving.cli import bench, bench_chart, bench_png
from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, poisson
from mindspore_serving.cli.bench_profiles import between, loads, mix
from mindspore_serving.cli.bench_prompts import Mix
from mindspore_serving.cli.bench_protocols import BenchAnswer
from mindspore_serving.cli.bench_settings import PROFILES, SCENARIOS, BenchSettings, check
from mindspore_serving.cli.bench_summary import summarize
from mindspore_serving.errors import InvalidInputs
from tests.e2e.harness import ROOT


def settings(**given: Any) -> BenchSettings:
    return BenchSettings("http://127.0.0.1:1", **given)


def labels(**given: Any) -> list[tuple[str, int]]:
    return [(load.label, load.count) for load in loads(settings(**given))]


def test_clients_are_the_default_and_a_rate_is_at_random() -> None:
    clients = [("1 client", 8), ("4 clients", 16), ("16 clients", 64), ("32 clients", 128)]
    assert labels() == labels(profile="concurrent") == clients
    assert labels(concurrency=(2,), requests=9) == [("2 clients", 9)]
    (load,) = loads(settings(rate=(2.0,), seed=5))
    assert (load.label, load.count, load.clients) == ("2 req/s", 60, 0)
    assert load.arrivals == tuple(poisson(2.0, 60, 5))
    assert loads(settings(rate=(2.0,), profile="poisson", seed=5)) == [load]


def test_constant_is_at_equal_distances() -> None:
    (load,) = loads(settings(rate=(4.0,), profile="constant"))
    assert load.arrivals[0] == 0
    assert {round(b - a, 6) for a, b in pairwise(load.arrivals)} == {0.25}
    assert len(load.arrivals) == load.count == 120


def test_synchronous_and_throughput_profiles() -> None:
    assert labels(profile="synchronous") == [("1 client", 8)]
    (load,) = loads(settings(profile="throughput", requests=5))
    assert (load.label, load.arrivals) == ("5 at once", (0.0,) * 5)
    assert labels(profile="throughput") == [("64 at once", 64)]


def of_rate(rate: float) -> BenchRun:
    return BenchRun("", [BenchOutcome(0, 0, 1, BenchAnswer())] * 10, seconds=10 / rate)


def test_a_sweep_spans_the_rates_of_a_single_client_and_of_all_at_once() -> None:
    assert labels(profile="sweep") == [("1 client", 8), ("64 at once", 64)]
    found = between([of_rate(1.0), of_rate(6.0)], settings(profile="sweep", requests=3))
    assert [load.label for load in found] == [f"{rate} req/s" for rate in (2, 3, 4, 5, 6)]
    assert found[0].arrivals == pytest.approx((0.0, 0.5, 1.0))
    assert between([of_rate(2.0), of_rate(2.0)], settings(profile="sweep")) == []


def test_two_servers_are_compared_with_fifty_pairs_or_more() -> None:
    given = {"compare": "http://127.0.0.1:2", "concurrency": (1, 32)}
    assert labels(**given) == [("1 client", 50), ("32 clients", 128)]
    assert labels(**given, requests=6) == [("1 client", 6), ("32 clients", 6)]


def test_a_scenario_sets_lengths_unless_options_do() -> None:
    assert mix(settings()) == Mix(256, 128, 0.0, 0)
    assert mix(settings(scenario="chat")) == Mix(512, 256, 0.25, 0)
    given = settings(scenario="rag", input_tokens=10, spread=0.0, shared_prefix=3)
    assert mix(given) == Mix(10, 512, 0.0, 3)
    for name in SCENARIOS:
        assert mix(settings(scenario=name)) != mix(settings())
    with pytest.raises(InvalidInputs, match="--shared-prefix 512: expected less than --input-tok"):
        mix(settings(scenario="chat", shared_prefix=512))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"profile": "constant"}, "--profile constant needs --rate"),
        ({"profile": "sweep", "rate": (1.0,)}, "--profile sweep takes no --rate"),
        ({"profile": "throughput", "concurrency": (1,)}, "--concurrency goes with --profile conc"),
        ({"rate": (1.0,), "concurrency": (1,)}, "--concurrency goes with --profile concurrent"),
        ({"compare": "u", "rate": (1.0,)}, "--compare goes with --profile concurrent or sync"),
        ({"compare": "u", "profile": "sweep"}, "--compare goes with --profile concurrent or sync"),
        ({"scenario": "chat", "prompts": "f"}, "--scenario is for generated prompts"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputs, match=told):
        check(settings(**given))


def test_the_documentation_has_every_option_profile_and_scenario() -> None:
    page = (ROOT / "docs/cli.md").read_text().partition("## bench")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(--[a-z-]+)", page))
    own = {f"--{one.name.replace('_', '-')}" for one in fields(BenchSettings)} - {"--url"}
    assert {one for one in own if not one.startswith("--tls-")} <= documented
    assert {f"`{name}`" for name in (*PROFILES, *SCENARIOS)} <= set(re.findall(r"`[a-z]+`", page))


# --- charts --------------------------------------------------------------------------------------


def measured(label: str, seconds: float) -> dict[str, Any]:
    answer = BenchAnswer([seconds, 2 * seconds], num_generated=4)
    return summarize(BenchRun(label, [BenchOutcome(0.0, 0.0, 3 * seconds, answer)], seconds=1.0))


def charts(page: str) -> dict[str, ElementTree.Element]:
    """By title."""
    found = (ElementTree.fromstring(one) for one in re.findall(r"(?s)<figure>.*?</figure>", page))
    return {str(one.findtext("figcaption")): one for one in found}


def test_a_page_has_a_chart_for_each_number_and_the_table() -> None:
    rows = [measured("1 client", 0.1), measured("4 clients", 0.4)]
    page = bench_chart.page(rows, ["load  <b>&", "1 client"])
    found = charts(page)
    assert len(found) == 5
    first = found["Time to the first token, ms"]
    dots = [str(one.findtext("title")) for one in first.iter("circle")]
    assert dots[:2] == ["p50 1 client: 100", "p50 4 clients: 400"]
    places = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in first.iter("circle")]
    assert places[0][0] < places[1][0]
    # four times as far above the axis, which is at 200
    assert 200 - places[1][1] == pytest.approx(4 * (200 - places[0][1]), abs=0.5)
    assert [one.text for one in first.iter("text")][:5] == ["0", "100", "200", "300", "400"]
    assert "load  &lt;b&gt;&amp;\n1 client" in page


@pytest.mark.parametrize(("rows", "lines"), [(2, 3), (0, 1)])
def test_a_picture_has_the_same_charts(rows: int, lines: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    both = [measured("1 client, A", 0.1), measured("1 client, B", 0.2)]
    bench_png.draw(both[:rows], str(tmp_path / "out.png"))
    head = (tmp_path / "out.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (1800, lines * 540)


def test_a_png_chart_without_matplotlib_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_png, "find_spec", lambda name: None)
    with pytest.raises(InvalidInputs, match=r"pip install 'mindspore-serving\[charts\]'"):
        bench.run(settings(chart="out.png"))


def test_a_page_needs_nothing_from_elsewhere() -> None:
    page = bench_chart.page([measured("1 client", 0.1)], ["table"])
    assert not re.search(r"https?:|<script|src=|@import|url\(", page)


def test_two_servers_have_lines_of_their_own() -> None:
    rows = [measured("1 client, A", 0.1), measured("1 client, B", 0.2)]
    found = charts(bench_chart.page(rows, []))
    legend = [str(one.text) for one in found["Answers per second"].iter("li")]
    assert len(legend) == 2
    dots = [one.findtext("title") for one in found["Time to the first token, ms"].iter("circle")]
    assert dots == [
        f"{server} {q} 1 client: {ms}"
        for server, ms in (("A", 100), ("B", 200))
        for q in ("p50", "p90", "p99")
    ]


def test_a_run_without_answers_or_streams_has_no_empty_chart() -> None:
    whole = summarize(
        BenchRun("1 client", [BenchOutcome(0.0, 0.0, 0.25, BenchAnswer())], seconds=1.0)
    )
    assert list(charts(bench_chart.page([whole], []))) == [
        "Time of a whole answer, ms",
        "Answers per second",
    ]
    failed = summarize(
        BenchRun("1 client", [BenchOutcome(0.0, 0.0, 0.1, None, ("timeout", ""))], 1.0)
    )
    assert charts(bench_chart.page([failed], [])) == {}
    both = [measured("1 client", 0.1), failed]
    assert (
        len(list(charts(bench_chart.page(both, []))["Time of a whole answer, ms"].iter("circle")))
        == 3
    )
