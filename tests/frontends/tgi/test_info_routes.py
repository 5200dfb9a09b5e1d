"""/info, /tokenize, /chat_tokenize, /ping, /invocations and the metrics."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Refused, Tokenize, Tokenized
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.tgi import Recorder, root_health
from mindspore_serving.metrics.exposition import Page
from tests.frontends.mounting import tgi_routes
from tests.frontends.tgi.scripted import STREAMED, WHOLE, Server, token

TOKENIZED = Tokenized(
    "Grüße an",
    (token(1, "<s>", is_special=True), token(3, "Grüße"), token(4, " an")),
    ((0, 0), (0, 5), (5, 8)),
)


async def test_info_has_the_model_and_its_limits() -> None:
    reply = await Server(tgi_routes, WHOLE).send("GET", "/info")
    version = __version__.encode()
    assert reply.content == (
        b'{"model_id":"tiny","model_sha":null,"model_pipeline_tag":"text-generation",'
        b'"max_concurrent_requests":10000,"max_best_of":2,"max_stop_sequences":4,'
        b'"max_input_tokens":63,"max_total_tokens":64,"validation_workers":2,'
        b'"max_client_batch_size":4,"router":"mindspore-serving","version":"%b","sha":null,'
        b'"docker_label":null}' % version
    )


async def test_tokenize_says_where_each_token_is() -> None:
    server = Server(tgi_routes, [TOKENIZED])
    reply = await server.post("/tokenize", {"inputs": "Grüße an"})
    assert (
        reply.content
        == (
            '[{"id":1,"text":"","start":0,"stop":0},{"id":3,"text":"Grüße","start":0,"stop":5},'
            '{"id":4,"text":" an","start":5,"stop":8}]'
        ).encode()
    )
    assert server.inference.sent == [Tokenize(prompt="Grüße an")]


async def test_tokenize_truncates_as_generate_does() -> None:
    server = Server(tgi_routes, [TOKENIZED])
    reply = await server.post("/tokenize", {"inputs": "Hi", "parameters": {"truncate": 2}})
    assert [one["id"] for one in reply.json()] == [3, 4]


async def test_a_body_of_another_protocol_is_left_to_its_route() -> None:
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse((await request.body()).decode())

    other = Route("/tokenize", echo, methods=["POST"])
    server = Server(lambda state: [*tgi_routes(state), other], [TOKENIZED])
    for body in ({"prompt": "Hi"}, {"messages": []}):
        reply = await server.post("/tokenize", body)
        assert reply.json() == body
    reply = await server.post("/tokenize", {"inputs": "Hi", "prompt": "Hi"})
    assert len(reply.json()) == 3


async def test_chat_tokenize_shows_the_template_filled_in() -> None:
    server = Server(tgi_routes, [TOKENIZED])
    messages = [{"role": "user", "content": "Hi"}]
    reply = await server.post("/chat_tokenize", {"messages": messages, "model": "tgi"})
    assert list(reply.json()) == ["tokenize_response", "templated_text"]
    assert reply.json()["templated_text"] == "Grüße an"
    assert len(reply.json()["tokenize_response"]) == 3
    assert server.inference.sent == [Tokenize(messages=messages, add_special=False)]


async def test_a_template_that_refuses_is_told() -> None:
    server = Server(tgi_routes, [Refused("template", "roles must alternate")])
    reply = await server.post("/chat_tokenize", {"messages": []})
    assert reply.status_code == 422
    assert reply.json() == {
        "error": "Template error: roles must alternate",
        "error_type": "template_error",
    }


async def test_tools_and_a_grammar_exclude_each_other() -> None:
    body = {
        "messages": [],
        "tools": [{"type": "function"}],
        "response_format": {"type": "regex", "value": "a"},
    }
    reply = await Server(tgi_routes, WHOLE).post("/chat_tokenize", body)
    assert reply.status_code == 422
    assert reply.json() == {
        "error": "Tool error: Grammar and tools are mutually exclusive",
        "error_type": "tool_error",
    }


async def test_health_is_an_empty_body_or_the_reason() -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.send("GET", "/ping")
    assert (reply.status_code, reply.content) == (200, b"")
    server.control.is_ready = False
    reply = await server.send("GET", "/ping")
    assert reply.status_code == 503
    assert reply.content == b'{"error":"unhealthy","error_type":"healthcheck"}'
    assert root_health(server.state.control).status_code == 503


async def test_invocations_are_answered_by_the_protocol_they_are_of() -> None:
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.url.path} {(await request.body()).decode()}")

    def with_others(state: AppState) -> list[Route]:
        others = ("/v1/chat/completions", "/v1/completions")
        return [*tgi_routes(state), *(Route(path, echo, methods=["POST"]) for path in others)]

    server = Server(with_others, WHOLE)
    reply = await server.post("/invocations", {"inputs": "Hi"})
    assert reply.json() == [{"generated_text": "Hi Hello world"}]
    reply = await server.post("/invocations", {"messages": []})
    assert reply.text == '/v1/chat/completions {"messages":[]}'
    reply = await server.post("/invocations", {"prompt": "Hi"})
    assert reply.text == '/v1/completions {"prompt":"Hi"}'
    reply = await server.post("/invocations", {"question": "Hi"})
    assert reply.status_code == 422
    server.inference.answers = [STREAMED]
    reply = await server.post("/invocations", {"inputs": "Hi", "stream": True})
    assert reply.text.startswith('data: {"index":1,')


def shown(recorder: Recorder, gauges: dict[str, float] | None = None) -> str:
    recorder.add_to(page := Page(), gauges)
    return page.render().decode()


def numbers(recorder: Recorder) -> dict[str, float]:
    lines = shown(recorder, {"queue_size": 3}).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


async def test_requests_are_counted_by_their_end() -> None:
    recorder = Recorder()
    server = Server(lambda state: tgi_routes(state, None, recorder), WHOLE)
    await server.post("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 8}})
    await server.post("/generate", {"inputs": "Hi", "parameters": {"top_p": 3}})
    await server.post("/generate_stream", {"inputs": "Hi", "parameters": {"top_p": 3}})
    server.inference.answers = [[Refused("overloaded", "")]]
    await server.post("/generate", {"inputs": "Hi"})
    server.inference.answers = [STREAMED]
    await server.post("/generate_stream", {"inputs": "Hi"})
    found = numbers(recorder)
    assert found["tgi_request_count"] == 5
    assert found["tgi_request_success"] == 2
    assert found['tgi_request_failure{err="validation"}'] == 2
    assert found['tgi_request_failure{err="overloaded"}'] == 1
    assert found["tgi_request_generated_tokens_sum"] == 6
    assert found["tgi_request_input_length_sum"] == 8
    assert found["tgi_request_max_new_tokens_sum"] == 8 + 60
    assert found["tgi_request_duration_count"] == found["tgi_request_queue_duration_count"] == 2
    assert found['tgi_request_duration_bucket{le="+Inf"}'] == 2
    assert found["tgi_queue_size"] == 3
    assert recorder.num_open == 0


def test_the_metrics_are_text_that_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from mindspore_serving.frontends.tgi.writing import Times

    recorder = Recorder()
    recorder.count_request()
    recorder.count_dropped()
    recorder.observe_done(Times(1.0, 1.5, 2.0, 4, 3), 64)
    text = shown(recorder)
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["tgi_request_duration"].type == "histogram"
    buckets = [s for s in families["tgi_request_duration"].samples if s.name.endswith("_bucket")]
    assert len(buckets) == 36
    assert buckets[0].labels["le"] == "0.00015000000000000001"
    assert '\ntgi_request_failure{err="dropped"} 1.0\n' in text
