"""Google's own client, over a model that says what the test tells it to."""

import asyncio

import numpy as np
import pydantic
import pytest
from google.genai import errors, types
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Tokenized
from mindspore_serving.core.reading_messages import Embedded
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.keys import ApiKey
from tests.frontends.gemini.conftest import client_of, mount
from tests.frontends.openai.serving import serving, spoken, token, whole

CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 1, "right": 2}}\n</tool_call>'
ADD = types.FunctionDeclaration(
    name="add",
    description="Adds.",
    parameters=types.Schema(
        type="OBJECT",
        properties={"left": types.Schema(type="INTEGER"), "right": types.Schema(type="INTEGER")},
        required=["left", "right"],
    ),
)
PIXEL = b"\x89PNG\xfb\xff\xfe"  # its base64 for URLs has - and _


def ask(client, contents="hello", **config):
    return client.models.generate_content(
        model="toy", contents=contents, config=types.GenerateContentConfig(**config)
    )


def test_an_answer_has_text_a_reason_and_usage(web, client):
    web.says(Chunk(0, "Hi!", (72, 33), None, "stop"), num_prompt=5, num_generated=3)
    found = ask(client, system_instruction="Be brief.")
    assert found.text == "Hi!"
    assert found.candidates[0].finish_reason == types.FinishReason.STOP
    usage = found.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == (5, 3)
    assert (usage.cached_content_token_count, usage.total_token_count) == (1, 8)
    assert (found.model_version, bool(found.response_id)) == ("toy", True)
    assert [message["role"] for message in web.sent.messages] == ["system", "user"]
    assert not web.sent.is_stream


def test_a_stream_ends_with_the_reason_and_the_counts(web, client):
    web.says(*spoken("Hel", "lo"), num_prompt=5, num_generated=3)
    found = [*client.models.generate_content_stream(model="models/toy", contents="hello")]
    assert "".join(chunk.text for chunk in found) == "Hello"
    assert [chunk.candidates[0].finish_reason for chunk in found[:-1]] == [None, None]
    assert found[-1].candidates[0].finish_reason == types.FinishReason.STOP
    assert found[-1].usage_metadata.total_token_count == 8
    assert len({chunk.response_id for chunk in found}) == 1


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
def test_the_client_of_asyncio_streams(web):
    async def stream():
        async with client_of(web).aio as client:
            chunks = await client.models.generate_content_stream(model="toy", contents="hello")
            return [chunk.text async for chunk in chunks]

    web.says(*spoken("a", "b"))
    assert "".join(asyncio.run(stream())) == "ab"


def test_options_become_sampling_parameters(web, client):
    web.says(*spoken("Hi"))
    ask(client, temperature=0.5, top_p=0.25, top_k=7, max_output_tokens=9, seed=3,
        stop_sequences=["x"], presence_penalty=0.5, frequency_penalty=-0.5)  # fmt: skip
    params = web.sent.params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
    assert (params.max_tokens, params.seed, [*params.stop]) == (9, 3, ["x"])
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)


def test_candidates_are_apart(web, client):
    web.says(*spoken("a"), *spoken("b", index=1))
    found = ask(client, candidate_count=2)
    assert [(one.index, one.content.parts[0].text) for one in found.candidates] == [
        (0, "a"), (1, "b")
    ]  # fmt: skip
    assert web.sent.params.n == 2


def test_a_function_is_called_and_its_result_answered(web, client):
    web.says(Chunk(0, CALL, (65,), None, "stop"))
    tools = [types.Tool(function_declarations=[ADD])]
    found = ask(client, tools=tools)
    (call,) = found.function_calls
    assert (call.name, call.args) == ("add", {"left": 1, "right": 2})
    assert web.sent.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
        "required": ["left", "right"],
    }
    result = types.Part.from_function_response(name="add", response={"output": "3"})
    web.says(*spoken("It is 3."))
    contents = [
        types.UserContent("1 + 2?"),
        found.candidates[0].content,
        types.Content(role="user", parts=[result]),
    ]
    assert ask(client, contents, tools=tools).text == "It is 3."
    called, answered = web.sent.messages[1:]
    assert called["tool_calls"][0]["function"] == {
        "name": "add", "arguments": {"left": 1, "right": 2}
    }  # fmt: skip
    # A client may leave the id of a result out: it is that of the call.
    assert answered["content"] == "3"
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"] == call.id


def test_functions_of_python_are_called_by_the_client(web, client):
    def add(left: int, right: int) -> int:
        """Add two numbers."""
        return left + right

    def script(request):
        results = [one["content"] for one in request.messages if one["role"] == "tool"]
        return whole(Chunk(0, f"It is {results[0]}." if results else CALL, (65,), None, "stop"))

    web.inference.script = script
    assert ask(client, tools=[add]).text == "It is 3."


def test_a_stream_sends_a_call_whole(web, client):
    web.says(*spoken("Let me see. ", *CALL))
    stream = client.models.generate_content_stream(
        model="toy",
        contents="1 + 2?",
        config=types.GenerateContentConfig(tools=[types.Tool(function_declarations=[ADD])]),
    )
    parts = [part for chunk in stream for part in chunk.candidates[0].content.parts]
    assert [part.function_call.name for part in parts if part.function_call] == ["add"]
    assert "".join(part.text or "" for part in parts).strip() == "Let me see."


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ({"mode": "NONE"}, ("none", None, 2)),
        ({"mode": "AUTO"}, ("auto", None, 2)),
        ({"mode": "VALIDATED"}, ("auto", None, 2)),
        ({"mode": "ANY"}, ("required", None, 2)),
        ({"mode": "ANY", "allowed_function_names": ["add"]}, ("required", "add", 1)),
        ({"mode": "ANY", "allowed_function_names": ["add", "sub"]}, ("required", None, 2)),
    ],
)
def test_a_mode_chooses_among_functions(web, client, config, chosen):
    web.says(*spoken("Hi"))
    sub = types.FunctionDeclaration(name="sub", parameters_json_schema={"type": "object"})
    ask(
        client,
        tools=[types.Tool(function_declarations=[ADD, sub])],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(**config)),
    )
    choice = web.sent.tool_choice
    assert (choice.mode, choice.name, len(web.sent.tools)) == chosen


def test_thoughts_are_sent_to_those_who_ask_for_them(web, client):
    web.says(Chunk(0, "<think>\nHm.\n</think>\n\nHi", (65, 66), None, "stop"), num_generated=2)
    silent = ask(client)
    assert silent.text == "Hi"
    assert [part.thought for part in silent.candidates[0].content.parts] == [None]
    thinking = types.ThinkingConfig(include_thoughts=True, thinking_budget=9)
    thought, text = ask(client, thinking_config=thinking).candidates[0].content.parts
    assert (thought.thought, thought.text.strip(), text.text) == (True, "Hm.", "Hi")
    assert web.sent.params.thinking_token_budget == 9
    assert web.sent.template_options["enable_thinking"] is True


def test_thinking_is_turned_off_and_its_effort_set(web, client):
    web.says(*spoken("Hi"))
    ask(client, thinking_config=types.ThinkingConfig(thinking_budget=0))
    assert web.sent.template_options["enable_thinking"] is False
    ask(client, thinking_config=types.ThinkingConfig(thinking_level="LOW", thinking_budget=-1))
    assert web.sent.template_options["reasoning_effort"] == "low"
    assert web.sent.params.thinking_token_budget is None
    web.control.card = replace(web.control.card, reasoning_format="")
    ask(client, thinking_config=types.ThinkingConfig(thinking_budget=9))
    assert (web.sent.params.thinking_token_budget, web.sent.template_options) == (None, {})


def test_past_thoughts_and_calls_are_messages(web, client):
    web.says(*spoken("Hi"))
    model = types.Content(
        role="model",
        parts=[
            types.Part(text="Hm.", thought=True, thought_signature=b"opaque"),
            types.Part(text="I add."),
            types.Part(function_call=types.FunctionCall(name="add", args={})),
            types.Part(function_call=types.FunctionCall(name="add", args={"left": 1})),
        ],
    )
    results = [
        types.Part.from_function_response(name="add", response={"error": "no"}),
        types.Part.from_function_response(name="add", response={"sum": 1, "is": True}),
    ]
    contents = [types.UserContent("Add."), model, types.Content(role="user", parts=results)]
    ask(client, contents, tools=[types.Tool(function_declarations=[ADD])])
    _, called, first, second = web.sent.messages
    assert (called["reasoning_content"], called["content"]) == ("Hm.", "I add.")
    assert [one["id"] for one in called["tool_calls"]] == ["call_1", "call_2"]
    assert (first["tool_call_id"], first["content"]) == ("call_1", "Error: no")
    assert (second["tool_call_id"], second["content"]) == ("call_2", '{"sum":1,"is":true}')


def test_images_are_read_by_models_that_take_them(web, client):
    web.says(*spoken("Hi"))
    contents = [types.Part.from_bytes(data=PIXEL, mime_type="image/png"), "What is it?"]
    with pytest.raises(errors.ClientError, match="the model reads no images"):
        ask(client, contents)
    web.control.card = replace(web.control.card, takes_images=True)
    ask(client, contents)
    image, text = web.sent.messages[0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,iVBOR/v//g=="
    assert text["text"] == "What is it?"


def test_answers_have_a_schema(web, client):
    class Person(pydantic.BaseModel):
        name: str
        age: int | None

    web.says(Chunk(0, '{"name": "Anna", "age": 31}', (65,), None, "stop"))
    found = ask(client, response_mime_type="application/json", response_schema=Person)
    assert found.parsed == Person(name="Anna", age=31)
    grammar = web.sent.grammar
    assert grammar.kind == "json_schema"
    assert '"age":{"type":["integer","null"]' in grammar.source
    ask(client, response_mime_type="application/json")
    assert web.sent.grammar.kind == "json_object"
    choices = types.Schema(type="STRING", enum=["red", 'gr"een'])
    ask(client, response_mime_type="text/x.enum", response_schema=choices)
    assert web.sent.grammar.source == r'start: "red" | "gr\"een"'


def test_tokens_have_log_probabilities(web, client):
    web.says(Chunk(0, "A", (65,), (token("A", -0.5, token("A", -0.5), token("B", -2.0)),), "stop"))
    candidate = ask(client, response_logprobs=True, logprobs=2).candidates[0]
    (chosen,) = candidate.logprobs_result.chosen_candidates
    assert (chosen.token, chosen.token_id, chosen.log_probability) == ("A", 65, -0.5)
    assert [one.token for one in candidate.logprobs_result.top_candidates[0].candidates] == [
        "A", "B"
    ]  # fmt: skip
    assert candidate.avg_logprobs == -0.5
    assert (web.sent.params.logprobs, web.sent.has_tokens) == (2, True)


def test_an_answer_that_is_cut_off_says_so(web, client):
    web.says(Chunk(0, CALL[:-20], (65,), None, "length"))
    found = ask(client, tools=[types.Tool(function_declarations=[ADD])])
    assert found.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert not found.function_calls


def test_tokens_are_counted(web, client):
    web.answers(Tokenized("ab", (token("a"), token("b")), ((0, 1), (1, 2))))
    assert client.models.count_tokens(model="toy", contents="hello").total_tokens == 2


def test_texts_become_vectors(web, client):
    def script(request):
        rows = np.arange(2 * len(request.prompts), dtype="<f4")
        return [Embedded(rows.tobytes(), 2, [3] * len(request.prompts))]

    web.inference.script = script
    found = client.models.embed_content(model="vectors", contents=["a", "b"])
    assert [one.values for one in found.embeddings] == [[0.0, 1.0], [2.0, 3.0]]


def test_models_are_listed(web, client):
    found = {model.name: model for model in client.models.list()}
    with client_of(web, api_version="v1beta") as older:
        assert [model.name for model in older.models.list()] == [*found]
    assert "data" in web.call("GET", "/v1/models").json  # OpenAI's clients get its list
    assert sorted(found) == ["models/toy", "models/tuned", "models/vectors"]
    assert found["models/vectors"].supported_actions == ["embedContent", "batchEmbedContents"]
    toy = client.models.get(model="toy")
    assert (toy.input_token_limit, toy.thinking) == (128, True)


def test_errors_have_a_status_and_its_name(web, client):
    with pytest.raises(errors.ClientError) as missing:
        client.models.generate_content(model="none", contents="hello")
    assert (missing.value.code, missing.value.status) == (404, "NOT_FOUND")
    with pytest.raises(errors.ClientError) as wrong:
        ask(client, max_output_tokens=0)
    assert (wrong.value.code, wrong.value.status) == (400, "INVALID_ARGUMENT")
    assert "generationConfig.maxOutputTokens is 0" in wrong.value.message
    web.inference.script = lambda request: ServingError("lost")
    with pytest.raises(errors.ServerError) as failed:
        ask(client)
    assert (failed.value.code, failed.value.status) == (500, "INTERNAL")


def test_a_key_is_read_from_googles_header_and_not_from_the_url():
    with serving(mount, [ApiKey("secret")]) as web:
        with client_of(web, "secret") as client:
            assert ask(client).text == "Hi!"
        with client_of(web, "wrong") as client, pytest.raises(errors.ClientError) as wrong:
            ask(client)
        assert wrong.value.status == "UNAUTHENTICATED"
        refused = web.call("GET", "/v1beta/models?key=secret")
        assert (refused.status, refused.error["status"]) == (401, "UNAUTHENTICATED")
        assert "a key in the URL is not read" in refused.error["message"]
