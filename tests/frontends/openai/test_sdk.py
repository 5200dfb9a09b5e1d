"""OpenAI's own client, over a model that says what the test tells it to."""

import asyncio

import openai
import pydantic
import pytest

from mindspore_serving.core.llm_messages import Chunk, Finished, Refused, Started, Tokenized
from mindspore_serving.errors import ServableUnavailable, ServingError
from tests.frontends.openai.serving import spoken, token
from tests.waiting import PATIENCE

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(web):
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def test_an_answer_has_text_reason_usage_and_the_request_id(web, client):
    web.says(Chunk(0, "Hi!", (72,), None, "stop"))
    found = client.chat.completions.create(model="toy", messages=MESSAGES)
    assert found.choices[0].message.content == "Hi!"
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.total_tokens == 5
    assert found.usage.prompt_tokens_details.cached_tokens == 1
    assert found._request_id.startswith("req_")


def test_a_stream_adds_up_to_the_answer(web, client):
    web.says(*spoken("Hi", " there"))
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="toy", messages=MESSAGES, stream=True, stream_options=options
        )
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Hi there"
    assert chunks[-1].usage.completion_tokens == 2


def test_the_stream_helper_builds_the_same_answer(web, client):
    web.says(*spoken("Hi", " there"))
    with client.chat.completions.stream(model="toy", messages=MESSAGES, n=1) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        found = stream.get_final_completion()
    assert deltas == ["", "Hi", " there"]
    message = found.choices[0].message
    assert (message.role, message.content) == ("assistant", "Hi there")


def test_the_stream_helper_adds_up_logprobs(web, client):
    tokens = (token("H", -1.0), token("i", -2.0, token("o", -0.5)))
    web.says(*[Chunk(0, one.text, (1,), (one,)) for one in tokens], Chunk(0, "", (), (), "stop"))
    with client.chat.completions.stream(
        model="toy", messages=MESSAGES, logprobs=True, top_logprobs=1
    ) as stream:
        found = stream.get_final_completion().choices[0].logprobs.content
    assert [(one.token, one.logprob, one.bytes) for one in found] == [
        ("H", -1.0, [72]),
        ("i", -2.0, [105]),
    ]
    assert found[1].top_logprobs[0].token == "o"


class Sum(pydantic.BaseModel):
    left: int
    right: int


def test_an_answer_is_parsed_as_a_pydantic_model(web, client):
    web.says(Chunk(0, '{"left":1,"right":2}', (1,), None, "stop"))
    found = client.chat.completions.parse(model="toy", messages=MESSAGES, response_format=Sum)
    assert found.choices[0].message.parsed == Sum(left=1, right=2)
    assert web.sent.grammar.kind == "json_schema"
    assert '"additionalProperties":false' in web.sent.grammar.source


def test_an_answer_that_was_cut_off_is_told_apart(web, client):
    web.says(Chunk(0, '{"left":', (1,), None, "length"))
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="toy", messages=MESSAGES, response_format=Sum)


def test_completions_and_their_streams(web, client):
    web.says(Chunk(0, "bc", (1,), None, "stop"))
    assert client.completions.create(model="toy", prompt="a").choices[0].text == "bc"
    web.says(*spoken("b", "c"))
    stream = client.completions.create(model="toy", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "bc"


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["toy", "tuned", "vectors"]
    assert client.models.retrieve("toy").id == "toy"


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        (Refused("context", "x", 9, 8), openai.BadRequestError, "context_length_exceeded"),
        (Refused("overloaded", "x"), openai.RateLimitError, "rate_limit_exceeded"),
        (ServableUnavailable("x"), openai.InternalServerError, None),
    ],
)
def test_errors_are_the_clients_exceptions(web, client, said, kind, code):
    web.inference.script = lambda request: said if isinstance(said, ServingError) else [said]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model="toy", messages=MESSAGES)
    assert caught.value.code == code


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_an_error_in_a_stream_is_raised(web, client):
    web.says(Chunk(0, "Hi", (1,)), Chunk(0, "", (), None, "error", "out of memory"))
    stream = client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="out of memory"):
        list(stream)


async def test_the_asynchronous_client_streams_and_leaves(web):
    web.inference.script = lambda request: None
    async with openai.AsyncOpenAI(base_url=web.url, api_key="none", max_retries=0) as client:
        making = asyncio.ensure_future(
            client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
        )
        await asyncio.to_thread(web.inference.wait, lambda: web.inference.calls)
        call = web.inference.calls[-1]
        call.say([Started(1, 0), Chunk(0, "Hi", (1,))], is_last=False)
        texts = []
        async with await making as stream:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)
                if texts[-1] == "Hi":
                    break
        await asyncio.to_thread(web.inference.wait, lambda: call.is_cancelled)
    assert texts == ["", "Hi"]


async def test_the_asynchronous_client_asks_many_at_once(web):
    web.inference.script = lambda request: [
        Started(1, 0),
        Chunk(0, request.messages[0]["content"] + "!", (1,), None, "stop"),
        Finished(1, 0, 1),
    ]
    async with openai.AsyncOpenAI(base_url=web.url, api_key="none", max_retries=0) as client:
        found = await asyncio.gather(
            *[
                client.chat.completions.create(
                    model="toy", messages=[{"role": "user", "content": str(index)}]
                )
                for index in range(20)
            ]
        )
    assert [one.choices[0].message.content for one in found] == [f"{i}!" for i in range(20)]


def test_missing_features_are_errors(client):
    for call in (
        lambda: client.images.generate(model="toy", prompt="a cat"),
        lambda: client.images.edit(model="toy", image=("a.png", b"PNG"), prompt="a hat"),
        lambda: client.moderations.create(input="hello"),
        client.files.list,
        lambda: client.post("/realtime/sessions", body={}, cast_to=object),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.type == "invalid_request_error"


def test_a_model_of_texts_refuses_sound(client):
    with pytest.raises(openai.BadRequestError, match="model 'toy' does not transcribe speech"):
        client.audio.transcriptions.create(model="toy", file=("a.wav", b"RIFF"))
    with pytest.raises(openai.BadRequestError, match="model 'toy' does not synthesize speech"):
        client.audio.speech.create(model="toy", voice="alloy", input="hello")


def test_a_wrong_method_is_an_error(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.get("/chat/completions", cast_to=object)
    assert (caught.value.status_code, caught.value.response.headers["allow"]) == (405, "POST")


def test_a_client_of_another_protocol_is_told_that_its_path_is_not_here(web):
    anthropic = pytest.importorskip("anthropic")
    base = web.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(model="toy", max_tokens=8, messages=MESSAGES)
        assert "there is no route POST /v1/messages" in caught.value.message
        with pytest.raises(anthropic.NotFoundError):
            client.messages.count_tokens(model="toy", messages=MESSAGES)


def test_the_input_of_a_response_is_counted(web, client):
    web.inference.script = lambda request: [Tokenized("abc", (token("a"),) * 3, ((0, 1),) * 3)]
    found = client.responses.input_tokens.count(model="toy", input="abc", instructions="be brief")
    assert found.input_tokens == 3
    assert [one["role"] for one in web.sent.messages] == ["system", "user"]
    with pytest.raises(openai.APIStatusError) as caught:
        client.get("/responses/input_tokens", cast_to=object)
    assert caught.value.response.headers["allow"] == "POST"
    with pytest.raises(openai.BadRequestError):
        client.responses.input_tokens.count(model="toy", input="a", previous_response_id="resp_1")
