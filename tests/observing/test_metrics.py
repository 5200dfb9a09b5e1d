"""What GET /metrics shows after requests in every protocol, and what asks for it."""

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from mindspore_serving.master.vllm_metrics import NAMES
from mindspore_serving.metrics.catalog import CATALOG
from tests.cli.commands import Command
from tests.observing import queries
from tests.observing.conftest import NUM_ANSWERS, NUM_GENERATIONS, NUM_TOKENS, Observed, Page
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow]
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)"
)
ALERTS = [one for one in queries.rules() if "alert" in one]
QUERIES = [
    *(query for path in queries.DASHBOARDS for query in queries.of_dashboard(path)),
    *(rule["expr"] for rule in queries.rules()),
]
_FOREIGN = ("vllm:", "tgi_", "process_")
# What the observed server has none of: LoRA adapters, files of certificates and of keys, caches of
# answers (see e2e/test_answer_cache.py), methods with a state (e2e/test_sequences.py), upstreams
# (e2e/test_fleet.py), and shadows (e2e/test_traffic.py).
_NOT_HERE = {
    "serving_upstream_state",
    "serving_upstream_requests_open",
    "serving_upstream_outstanding_tokens",
    "serving_upstream_requests_total",
    "serving_upstream_errors_total",
    "serving_key_instances_total",
    "serving_key_refusals_total",
    "serving_key_requests_total",
    "serving_key_tokens_total",
    "serving_tenant_log_dropped_total",
    "serving_limits_exchanges_total",
    "serving_sequences",
    "serving_sequences_evicted_total",
    "serving_cache_bytes",
    "serving_cache_evictions_total",
    "serving_cache_requests_total",
    "serving_cache_store_total",
    "serving_shadow_requests_total",
    "serving_llm_adapter_loaded",
    "serving_certificate_expiry_timestamp_seconds",
    "serving_file_reloads_total",
}


def own(page: str) -> str:
    """The lines of metrics with names of ours."""
    return "".join(
        line + "\n"
        for line in page.splitlines()
        if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_FOREIGN)
    )


def test_every_metric_has_a_helpful_text_and_no_label_is_empty(observed: Observed) -> None:
    families = observed.read().families
    assert families
    for name, family in families.items():
        assert len(family.documentation.split()) >= 2, name
        assert family.documentation != family.name, name
        for sample in family.samples:
            assert all(sample.labels.values()), sample


def test_the_page_has_all_that_the_catalog_describes_and_nothing_else(observed: Observed) -> None:
    shown = {}
    for family in observed.read().families.values():
        if not family.name.startswith(_FOREIGN):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels}
            shown[name] = (family.type, family.documentation, labels - {"le"})
    expected = {one.name: (one.kind, one.help, set(one.labels)) for one in CATALOG.values()}
    assert shown == {name: row for name, row in expected.items() if name not in _NOT_HERE}


def test_requests_are_counted_by_method_and_result(observed: Observed) -> None:
    page = observed.read()
    words = {"servable": "words", "version": "1"}
    requests = "serving_requests_total"
    assert page.value(requests, **words, method="double", code="ok") == 3
    assert page.value(requests, **words, method="joined", code="invalid_inputs") == 1
    assert page.value("serving_instances_total", **words, method="double") == 4
    assert page.value("serving_request_seconds_count", **words) == 4
    assert page.value("serving_request_queue_seconds_count", **words, method="double") == 3
    assert page.value("serving_batch_size_count", **words) >= 1
    assert page.value("serving_batch_size_sum", **words) == 4
    assert page.value("serving_ready", **words) == 1


@pytest.mark.parametrize(
    ("protocol", "code", "count"),
    [
        ("rest", "200", 1),
        ("rest", "400", 1),
        ("v2", "200", 1),
        ("openai", "200", 2),
        ("tgi", "200", 1),
        ("other", "404", 1),
        ("grpc", "OK", 1),
    ],
)
def test_responses_are_counted_by_protocol_and_status(
    observed: Observed, protocol: str, code: str, count: int
) -> None:
    responses = "serving_responses_total"
    eventually(lambda: observed.value(responses, protocol=protocol, code=code) >= count)
    assert observed.value(responses, protocol=protocol, code=code) == count


def test_generations_of_all_protocols_are_timed(observed: Observed) -> None:
    page = observed.read()
    chatty = {"servable": "chatty", "version": "1"}
    for name in ("time_to_first_token", "generation", "queue", "prefill", "decode", "inference"):
        assert page.value(f"serving_llm_{name}_seconds_count", **chatty) == NUM_GENERATIONS
    between = NUM_ANSWERS * (NUM_TOKENS - 1)
    assert page.value("serving_llm_inter_token_seconds_count", **chatty) == between
    generated = NUM_ANSWERS * NUM_TOKENS
    assert page.value("serving_llm_generated_tokens_total", **chatty) == generated
    assert page.value("serving_llm_request_generated_tokens_sum", **chatty) == generated
    prompts = page.value("serving_llm_prompt_tokens_total", **chatty)
    assert page.value("serving_llm_request_prompt_tokens_sum", **chatty) == prompts > 0
    answers = page.value("serving_llm_answers_total", **chatty, finish_reason="length")
    assert answers == NUM_ANSWERS
    assert page.value("serving_llm_batch_size_sum", **chatty) >= generated - NUM_GENERATIONS
    assert page.value("serving_llm_cache_used_ratio", **chatty) == 0
    limit = page.value("serving_llm_cache_limit_bytes", **chatty)
    assert 0 < page.value("serving_llm_cache_bytes", **chatty) < limit <= 64 << 20
    assert page.value("serving_llm_cache_target_bytes", **chatty) <= limit


def test_the_parts_of_a_generation_add_up(observed: Observed) -> None:
    page = observed.read()
    parts = [
        page.value(f"serving_llm_{name}_seconds_sum")
        for name in ("inference", "prefill", "decode", "generation")
    ]
    inference, prefill, decode, whole = parts
    assert prefill + decode == pytest.approx(inference)
    assert inference <= whole


def test_processes_report_cpu_memory_and_descriptors(observed: Observed) -> None:
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds"):
        assert observed.value(f"process_{name}") > 0
        for servable in ("words", "chatty"):
            eventually(lambda n=name, s=servable: observed.value(f"serving_worker_{n}", servable=s))
    family = observed.read().families["serving_worker_open_fds"]
    assert {sample.labels["worker"] for sample in family.samples} == {"device 0"}


def test_language_models_have_the_names_of_vllm_if_that_is_asked_for(observed: Observed) -> None:
    page = observed.read()
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in page.families.values()
        if family.name.startswith("vllm:")
    }
    assert sorted(found) == NAMES
    chatty = {"model_name": "chatty", "engine": "1"}
    tokens = page.value("vllm:generation_tokens_total", **chatty)
    assert tokens == page.value("serving_llm_generated_tokens_total")
    success = page.value("vllm:request_success_total", **chatty, finished_reason="length")
    assert success == NUM_ANSWERS
    text = (queries.ROOT / "docs" / "metrics.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []


@pytest.fixture(scope="module")
def settled(observed: Observed) -> Page:
    """The page, once every worker has told of its process."""
    for servable in ("words", "chatty"):
        eventually(lambda s=servable: observed.value("serving_worker_open_fds", servable=s))
    return observed.read()


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_dashboards_and_rules_are_on_the_page(settled: Page, query: str) -> None:
    families = settled.families
    recorded = {rule["record"]: {"servable"} for rule in queries.rules() if "record" in rule}
    asked = list(queries.selectors(query))
    assert asked
    for name, labels in asked:
        if name == "up":
            continue
        known = set(CATALOG[name].labels) if name in _NOT_HERE else recorded.get(name)
        if known is None:
            samples = [one for one in families[name].samples if one.name == name]
            known = {label for sample in samples for label in sample.labels}
        assert labels <= known, (name, query)


def test_a_query_is_read_as_metrics_and_labels() -> None:
    query = (
        'sum by (le, servable) (rate(a_bucket{job=~"$job",code!="x y"}[$__rate_interval])) '
        "/ b_total > 5 unless on (job) c:d"
    )
    assert list(queries.selectors(query)) == [
        ("a_bucket", {"le", "servable", "code"}),
        ("b_total", {"le", "servable"}),
        ("c:d", {"le", "servable"}),
    ]


@needs_promtool
def test_promtool_finds_nothing_wrong_with_our_names(observed: Observed) -> None:
    assert check("metrics", input=own(observed.page())) == ""


@needs_promtool
def test_promtool_accepts_the_configuration_the_rules_and_the_dashboards(tmp_path: Path) -> None:
    check("config", str(queries.PROMETHEUS / "prometheus.yml"))
    rules = [{"record": f"query:{n}", "expr": queries.filled(q)} for n, q in enumerate(QUERIES)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    check("rules", str(path))


@needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = (Path(__file__).parent / "alerts.yml").read_text()
    path = tmp_path / "alerts.yml"
    path.write_text(f"rule_files: [{queries.PROMETHEUS / 'rules.yml'}]\n{cases}")
    words = [str(PROMTOOL), "test", "rules", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = {one["alertname"] for case in yaml.safe_load(cases)["tests"] for one in _fired(case)}
    assert tried == {one["alert"] for one in ALERTS}


def _fired(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in case["alert_rule_test"] if "exp_alerts" in one]


def check(*words: str, **options: Any) -> str:
    """What `promtool check` says on its standard error."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", *words], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)")
def test_prometheus_scrapes_a_server_and_answers_every_query(
    observed: Observed, tmp_path: Path
) -> None:
    for name in ("prometheus.yml", "rules.yml"):
        text = (queries.PROMETHEUS / name).read_text()
        text = text.replace("serving:1500", f"127.0.0.1:{observed.http}").replace("15s", "1s")
        (tmp_path / name).write_text(text)
    words = [str(PROMETHEUS), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with Command([*words, "--web.listen-address=127.0.0.1:0"], tmp_path) as command:
        command.says('msg="Listening on"')
        command.says("ready to receive web requests")
        line = next(one for one in command.lines if 'msg="Listening on"' in one)
        port = re.findall(r"address=127\.0\.0\.1:(\d+)", line)[0]

        def ask(query: str) -> list[Any]:
            form = urllib.parse.urlencode({"query": queries.filled(query)})
            url = f"http://127.0.0.1:{port}/api/v1/query?{form}"
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                found = json.load(answer)
            assert found["status"] == "success", query
            return list(found["data"]["result"])

        eventually(lambda: ask("count_over_time(up[1m]) > 1"), what="two scrapes")
        for query in QUERIES:
            ask(query)
        for path in queries.DASHBOARDS:
            silent = [one for one in queries.of_dashboard(path) if not ask(one)]
            silent = [one for one in silent if not any(name in one for name in _NOT_HERE)]
            assert silent == [], "panels without data"
        assert ask("up")[0]["value"][1] == "1"
        assert {one["metric"]["servable"] for one in ask("serving_ready")} == {"words", "chatty"}
        eventually(lambda: ask("servable:serving_requests:rate5m"), what="a recorded rule")
        assert ask("ALERTS") == []


def test_the_dashboard_can_be_imported_and_each_panel_says_its_unit() -> None:
    (path,) = queries.DASHBOARDS
    board = json.loads(path.read_text())
    assert {"uid", "title", "panels", "schemaVersion", "templating"} <= board.keys()
    panels = [one for one in board["panels"] if one["type"] != "row"]
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])
    assert all(one["fieldConfig"]["defaults"]["unit"] for one in panels)
    assert all(one["datasource"]["uid"] == "${datasource}" for one in panels)
    names = {one["name"] for one in board["templating"]["list"]}
    assert names == {"datasource", "job", "servable"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_and_a_subject(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")
    assert "$labels." in rule["annotations"]["summary"]


def test_the_alerts_that_an_operator_needs_are_there() -> None:
    names = {rule["alert"] for rule in ALERTS}
    assert names >= {
        *("ServingDown", "ServingNotReady", "ServingErrors", "ServingSlow"),
        *("ServingLoadFailed", "ServingCertificateEnds", "ServingFileRefused"),
        *("ServingWorkersRestart", "ServingQueueGrows", "ServingCacheFull"),
    }
    assert os.path.exists(queries.PROMETHEUS / "prometheus.yml")
