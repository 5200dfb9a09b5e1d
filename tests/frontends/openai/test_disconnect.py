"""A client that leaves frees what it call for, wherever the answer stands."""

import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused, Started
from tests.frontends.openai.disconnecting import leave

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
ONE = ("/v1/completions", {"prompt": "a"})
MANY = ("/v1/completions", {"prompt": ["a", "b", "c"]})


@pytest.fixture
def silent(web):
    web.inference.script = lambda request: None
    return web


def are_cancelled(web):
    web.inference.wait(lambda: all(call.is_cancelled for call in web.inference.calls))


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, ONE, MANY])
def test_disconnect_before_the_model_starts_cancels(silent, path, body, is_stream):
    leave(silent, path, {**body, "stream": is_stream})
    are_cancelled(silent)


@pytest.mark.parametrize(("path", "body"), [CHAT, ONE, MANY])
def test_disconnect_while_the_answer_is_collected_cancels(silent, path, body):
    leave(silent, path, body, said=[Started(1, 0), Chunk(0, "x", (120,))])
    are_cancelled(silent)


@pytest.mark.parametrize(("path", "body"), [CHAT, ONE, MANY])
def test_disconnect_in_the_middle_of_a_stream_cancels(silent, path, body):
    said = [Started(1, 0), Chunk(0, "word", (120,))]
    leave(silent, path, {**body, "stream": True}, said=said, until=b"word")
    are_cancelled(silent)


def test_disconnect_before_any_token_of_a_stream_cancels(silent):
    path, body = CHAT
    leave(silent, path, {**body, "stream": True}, said=[Started(1, 0)], until=b"assistant")
    are_cancelled(silent)


def test_disconnect_while_text_is_tokenized_cancels(silent):
    leave(silent, "/tokenize", {"prompt": "a"})
    are_cancelled(silent)


def test_a_refused_prompt_cancels_the_other_prompts(web):
    def script(request):
        if request.prompt == "":
            return [Refused("empty", "the prompt is empty")]
        web.inference.calls[-1].say([Started(1, 0)], is_last=False)
        return None

    web.inference.script = script
    assert web.complete(prompt=["a", "", "c"]).status == 400
    first, _, last = web.inference.calls
    web.inference.wait(lambda: first.is_cancelled and last.is_cancelled)
