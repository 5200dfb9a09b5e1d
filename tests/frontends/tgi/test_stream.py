"""/generate_stream: its bytes, and that an error is an event."""

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.errors import WorkerUnavailable
from tests.frontends.mounting import tgi_routes
from tests.frontends.tgi.scripted import STREAMED, Server, begun, ended, piece, token

GOLDEN = (
    b'data: {"index":1,"token":{"id":5,"text":" Hello","logprob":-0.5,"special":false},'
    b'"generated_text":null,"details":null}\n\n'
    b'data: {"index":2,"token":{"id":6,"text":" world","logprob":-0.25,"special":false},'
    b'"generated_text":null,"details":null}\n\n'
    b'data: {"index":3,"token":{"id":2,"text":"</s>","logprob":-0.125,"special":true},'
    b'"generated_text":" Hello world","details":null}\n\n'
)


async def test_the_stream_has_the_exact_bytes_that_clients_parse() -> None:
    server = Server(tgi_routes, STREAMED)
    reply = await server.post("/generate_stream", {"inputs": "Hi", "parameters": {}})
    assert reply.status_code == 200
    assert reply.content == GOLDEN
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-compute-type"] == "toy"
    assert reply.headers["x-compute-characters"] == "2"
    assert server.sent.is_stream
    assert server.inference.num_cancelled == 0


async def test_details_come_with_the_last_token() -> None:
    server = Server(tgi_routes, STREAMED)
    body = {"inputs": "Hi", "parameters": {"details": True, "do_sample": True}}
    reply = await server.post("/generate_stream", body)
    assert reply.content.endswith(
        b'"generated_text":" Hello world","details":{"finish_reason":"eos_token",'
        b'"generated_tokens":3,"seed":42,"input_length":4}}\n\n'
    )
    assert reply.content.count(b'"details":null') == 2


async def test_the_root_streams_if_asked_and_gives_the_full_text() -> None:
    server = Server(tgi_routes, STREAMED)
    reply = await server.post("/", {"inputs": "Hi", "stream": True})
    assert reply.content == GOLDEN.replace(b'"generated_text":" H', b'"generated_text":"Hi H')


async def test_a_stream_flag_of_the_other_routes_is_ignored() -> None:
    server = Server(tgi_routes, STREAMED)
    reply = await server.post("/generate_stream", {"inputs": "Hi", "stream": False})
    assert reply.content == GOLDEN


async def test_a_piece_of_several_tokens_makes_an_event_for_each() -> None:
    tokens = [token(number, f" {number}", -1.0) for number in (5, 6)]
    last = piece(*tokens, finish_reason="length")
    server = Server(tgi_routes, (begun(), piece(*tokens), last, ended()))
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    lines = reply.content.split(b"\n\n")[:-1]
    assert [line[:17] for line in lines] == [b'data: {"index":%d,' % n for n in (1, 2, 3, 4)]
    assert b'"generated_text":" 5 6 5 6"' in lines[-1]
    assert all(b'"generated_text":null' in line for line in lines[:-1])


async def test_top_tokens_stand_behind_the_token() -> None:
    hello = token(5, " Hello", -0.5, top=[token(5, " Hello", -0.5)])
    server = Server(tgi_routes, (begun(), piece(hello, finish_reason="length"), ended()))
    body = {"inputs": "Hi", "parameters": {"top_n_tokens": 1}}
    reply = await server.post("/generate_stream", body)
    assert (
        b'"special":false},"top_tokens":[{"id":5,"text":" Hello","logprob":-0.5,"special":false}],'
        b'"generated_text":" Hello"'
    ) in reply.content


async def test_half_characters_wait_for_the_rest() -> None:
    halves = [
        token(8, "\ufffd", -1.0, data=b"\xf0\x9f"),
        token(9, "\ufffd", -1.0, data=b"\x98\x80"),
    ]
    events = (begun(), piece(halves[0], text=""), piece(halves[1], text="😀"))
    last = piece(token(8, "\ufffd", -1.0, data=b"\xf0"), text="\ufffd", finish_reason="length")
    server = Server(tgi_routes, (*events, last, ended()))
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    lines = reply.text.split("\n\n")[:-1]
    assert '"text":""' in lines[0]
    assert '"text":"😀"' in lines[1]
    assert '"text":"\ufffd"' in lines[2]
    assert '"generated_text":"😀\ufffd"' in lines[2]


async def test_a_wrong_parameter_is_an_event_with_status_200() -> None:
    body = {"inputs": "Hi", "parameters": {"temperature": 0}}
    reply = await Server(tgi_routes, STREAMED).post("/generate_stream", body)
    assert reply.status_code == 200
    assert reply.content == (
        b'data: {"error":"Input validation error: `temperature` must be strictly positive",'
        b'"error_type":"validation"}\n\n'
    )


async def test_a_refusal_is_an_event() -> None:
    server = Server(tgi_routes, [Refused("overloaded", "too many")])
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    assert reply.content == (b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n')


async def test_a_worker_that_dies_in_the_middle_ends_the_stream_with_an_event() -> None:
    server = Server(tgi_routes, STREAMED)
    server.inference.answers = [(begun(), piece(token(5, "a", -1.0)))]
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    assert reply.content.endswith(
        b'data: {"error":"Request failed during generation: the answer ended early",'
        b'"error_type":"generation"}\n\n'
    )
    server.inference.answers = [WorkerUnavailable("the worker died")]
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    assert reply.content == (
        b'data: {"error":"Request failed during generation: the worker died",'
        b'"error_type":"generation"}\n\n'
    )


async def test_an_aborted_answer_is_incomplete() -> None:
    server = Server(tgi_routes, (begun(), piece(finish_reason="abort"), ended()))
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    assert reply.content == (
        b'data: {"error":"Incomplete generation stream",'
        b'"error_type":"incomplete_generation_stream"}\n\n'
    )
