"""Methods that yield: pieces over REST and gRPC as they are made, one answer for other calls."""

import json

from mindspore_serving.client import AsyncClient
from tests.e2e.harness import Calls, eventually
from tests.waiting import PATIENCE

SOURCE = """
def spell(word, count):
    for letter in str(word) * int(count):
        yield letter
def louder(letter):
    return letter.upper()
@register.register_method(output_names=["letter"])
def spelled(word, count):
    letter = register.add_stage(spell, word, count, outputs_count=1)
    return register.add_stage(louder, letter, outputs_count=1)

@method("number", "text")
def numbers(count):
    for number in range(int(count)):
        yield number, f"<{number}>"

@method("y")
def breaks(count):
    yield from range(int(count))
    raise ValueError("the well is dry")

@method("y")
def endless(path):
    try:
        while True:
            time.sleep(0.001)
            yield 1
    finally:
        open(str(path), "w").close()

def twice(x):
    return x * 2
@register.register_method(output_names=["y"])
def plain(x):
    return register.add_stage(twice, x, outputs_count=1)

@register.register_method(output_names=["y"])
def plain_stream(x):
    return register.add_stage(twice, x, outputs_count=1)
"""


def stream(
    calls: Calls, method: str, instance: dict, servable: str = "toy", **headers: str
) -> list:
    body = json.dumps({"instances": [instance]})
    status, answer = calls.http_call("POST", f"/model/{servable}:{method}", body, headers)
    assert status == 200
    assert answer.endswith(b"\n\n"), answer
    events = answer.decode().split("\n\n")[:-1]
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_pieces_pass_the_later_stages_and_come_in_order(calls):
    pieces = stream(calls, "spelled_stream", {"word": "abc", "count": 2})
    assert pieces == [{"instances": [{"letter": letter}]} for letter in "ABCABC"]


def test_grpc_gives_the_same_pieces(calls):
    client = calls.client("toy", "spelled")
    pieces = list(client.infer_stream({"word": "abc", "count": 2}))
    assert pieces == [{"letter": letter} for letter in "ABCABC"]


async def test_the_asyncio_client_gives_the_same_pieces(calls):
    async with AsyncClient(calls.grpc, "toy", "spelled", timeout=PATIENCE) as client:
        pieces = [piece async for piece in client.infer_stream({"word": "ab", "count": 1})]
    assert pieces == [{"letter": "A"}, {"letter": "B"}]


def test_an_unstreamed_call_gets_joined_texts_or_the_last_value(calls):
    assert calls.post("toy", "numbers", [{"count": 3}]) == {
        "instances": [{"number": 2, "text": "<0><1><2>"}]
    }


def test_several_instances_get_an_answer_each(calls):
    answers = calls.post("toy", "spelled", [{"word": "a", "count": 2}, {"word": "b", "count": 1}])
    assert answers == {"instances": [{"letter": "AA"}, {"letter": "B"}]}


def test_a_stream_takes_a_single_instance(calls):
    body = json.dumps({"instances": [{"word": "a", "count": 2}] * 2})
    _, answer = calls.http_call("POST", "/model/toy:spelled_stream", body)
    assert "a stream takes one instance, 2 were given" in json.loads(answer)["error_msg"]


def test_a_failure_in_the_middle_is_the_last_event(calls):
    pieces = stream(calls, "breaks_stream", {"count": 2})
    assert pieces[:2] == [{"instances": [{"y": 0}]}, {"instances": [{"y": 1}]}]
    assert "the well is dry" in pieces[2]["error_msg"]
    assert len(pieces) == 3
    last = list(calls.client("toy", "breaks").infer_stream({"count": 1}))[-1]
    assert "the well is dry" in last["error"]


def test_a_failure_before_the_first_piece_is_an_ordinary_answer(calls):
    _, answer = calls.http_call("POST", "/model/toy:spelled_stream", b'{"instances":[{"word":1}]}')
    assert "count" in json.loads(answer)["error_msg"]


def test_a_method_that_does_not_stream_yields_a_single_chunk(calls):
    assert list(calls.client("toy", "plain").infer_stream({"x": 4})) == [{"y": 8}]


def test_a_method_whose_own_name_ends_so_is_called_as_ever(calls):
    assert calls.post("toy", "plain_stream", [{"x": 4}]) == {"instances": [{"y": 8}]}


def test_other_requests_are_answered_while_a_stream_runs(calls, tmp_path):
    pieces = calls.client("toy", "endless").infer_stream({"path": str(tmp_path / "a")})
    assert next(pieces) == {"y": 1}
    assert calls.post("toy", "plain", [{"x": 4}]) == {"instances": [{"y": 8}]}
    many = calls.post("toy", "plain", [{"x": number} for number in range(100)])
    assert many == {"instances": [{"y": 2 * number} for number in range(100)]}
    pieces.close()


def test_a_client_that_leaves_ends_the_generator(calls, tmp_path):
    pieces = calls.client("toy", "endless").infer_stream({"path": str(tmp_path / "left")})
    next(pieces)
    pieces.close()
    eventually((tmp_path / "left").exists, what="the generator's finally")


def test_a_deadline_ends_a_stream(calls, tmp_path):
    for seconds in ("0.3", "3", "30"):  # a busy machine may not come to the first piece in time
        body = json.dumps({"instances": [{"path": str(tmp_path / seconds)}]})
        headers = {"X-Request-Timeout": seconds}
        _, answer = calls.http_call("POST", "/model/toy:endless_stream", body, headers)
        first, *_, last = answer.decode().split("data: ")
        if not first:
            break
    assert f"no answer within {seconds} seconds" in json.loads(last)["error_msg"]
    assert answer.endswith(b"\n\n")
    eventually((tmp_path / seconds).exists, what="the generator's finally")
