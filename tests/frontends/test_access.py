"""Which protocol has a path, and the counts of a real HTTP server, also of clients that leave."""

import pytest
from starlette.responses import StreamingResponse
from starlette.routing import Route

from mindspore_serving.frontends.access import ResponseCounter, protocol_of_service
from mindspore_serving.frontends.protocols import PATHS, ROUTES
from tests.frontends.http_serving import BODY, GET, Web, post
from tests.waiting import eventually


async def cut(request):
    async def made():
        yield b"one"
        raise ZeroDivisionError("a bug of ours")

    return StreamingResponse(made())


@pytest.fixture
def web(background):
    web = Web(background, routes=[Route("/cut", cut)])
    yield web
    web.close()


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/model/add:cast", "rest"),
        ("/v2/models/add/infer", "v2"),
        ("/v1/models/add:predict", "kserve"),
        ("/v1/models/add", "openai"),
        ("/v1/chat/completions", "openai"),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/api/chat", "ollama"),
        ("/models/llama/generate", "llm_serving"),
        ("/generate", "tgi"),
        ("/generate_stream", "tgi"),
        ("/metrics", "server"),
        ("/readyz/add", "server"),
        ("/", "other"),
        ("/v1x", "other"),
        ("/v1/messages_of_nobody", "openai"),
    ],
)
def test_a_path_is_of_a_protocol(path, protocol):
    assert PATHS.find(path).protocol.name == protocol


def test_every_route_is_of_a_protocol_that_has_routes() -> None:
    names = {row.protocol.name for row in ROUTES}
    assert {PATHS.find(row.path).protocol.name for row in ROUTES} <= names
    assert {"openai", "tgi", "server", "rest", "kserve"} <= names


def test_services_of_grpc_have_names():
    assert protocol_of_service("mindspore.serving.proto.MSService") == "grpc"
    assert protocol_of_service("grpc.reflection.v1.ServerReflection") == "other_grpc"


def test_responses_are_counted_when_they_have_been_written(web):
    counts = web.server.shared.responses.counts
    client = web.connect()
    client.send(post(path=b"/model/add:m") + GET + post(BODY, b"/nowhere"))
    statuses = [client.read()[0] for _ in range(3)]
    assert statuses == [200, 200, 404]
    eventually(lambda: counts["other", 404])
    assert counts == {("rest", 200): 1, ("server", 200): 1, ("other", 404): 1}


def test_data_that_is_not_http_is_counted_by_its_refusal(web):
    client = web.connect()
    client.send(b"nonsense\r\n\r\n")
    assert client.read()[0] == 400
    counts = web.server.shared.responses.counts
    eventually(lambda: counts["other", 400] == 1)


def test_a_client_that_leaves_is_counted(web):
    web.inference.holds = True
    client = web.connect()
    client.send(post(path=b"/model/add:m"))
    web.inference.wait_for(1)
    client.stream.close()
    counts = web.server.shared.responses.counts
    eventually(lambda: counts["rest", 499] == 1)


def test_an_answer_that_we_cut_short_is_no_client_that_left(web):
    client = web.connect()
    client.send(GET.replace(b"/health", b"/cut"))
    while client.stream.recv(1 << 16):
        pass
    counts = web.server.shared.responses.counts
    eventually(lambda: counts["other", 500] == 1)
    assert counts["other", 499] == 0


def test_without_an_access_log_no_entry_is_made():
    responses = ResponseCounter()
    responses.add("rest", 200, None, 10)
    assert responses.counts == {("rest", 200): 1}
