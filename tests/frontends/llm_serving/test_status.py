"""GET /serving/...: numbers and the model's description as single events."""

from mindspore_serving import __version__
from tests.frontends.mounting import llm_serving_routes
from tests.frontends.tgi.scripted import WHOLE, Server

OBSERVED = [
    {"name": "tiny", "model": {}, "requests": {"waiting": 2}, "engine": {"num_waiting": 3}},
    {"name": "classic", "requests": {"waiting": 50}},
]


async def test_numbers_are_events() -> None:
    server = Server(llm_serving_routes, WHOLE)
    server.control.observed = OBSERVED
    reply = await server.send("GET", "/serving/get_request_numbers")
    assert reply.content == b'data: {"event": "message", "retry": 30000, "data": 5}\r\n\r\n'
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_batch_size_is_that_of_a_step_now() -> None:
    server = Server(llm_serving_routes, WHOLE)
    server.control.observed = [{"model": {}, "engine": {"num_running": 7}}]
    reply = await server.send("GET", "/serving/get_bs")
    assert reply.content == b'data: {"event": "message", "retry": 30000, "data": 7}\r\n\r\n'
    server.control.observed = [{"model": {}}]
    reply = await server.send("GET", "/serving/get_bs")
    assert reply.content == b'data: {"event": "message", "retry": 30000, "data": 1}\r\n\r\n'


async def test_the_model_is_described_in_the_originals_words() -> None:
    import json

    server = Server(llm_serving_routes, WHOLE)
    server.control.observed = OBSERVED
    reply = await server.send("GET", "/serving/get_serverd_model_info")
    assert reply.text.startswith("data: {")
    assert reply.text.endswith("}\r\n\r\n")
    assert json.loads(reply.text[6:]) == {
        "docker_label": "",
        "max_batch_total_tokens": 64 * 16,
        "max_concurrent_requests": 5,
        "max_input_length": 64,
        "max_total_tokens": 16,
        "model_device_type": "toy",
        "model_dtype": "f32",
        "model_id": "tiny",
        "model_pipeline_tag": "text-generation",
        "version": __version__,
    }


async def test_without_a_model_there_is_nothing_to_describe() -> None:
    server = Server(llm_serving_routes, WHOLE, models=[])
    reply = await server.send("GET", "/serving/get_serverd_model_info")
    assert reply.status_code == 404
