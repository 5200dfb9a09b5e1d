"""LangChain's chat model, over a model that says what the test tells it to."""

import pytest
from langchain_openai import ChatOpenAI

from mindspore_serving.core.llm_messages import Chunk
from tests.frontends.openai.serving import spoken
from tests.waiting import PATIENCE


@pytest.fixture
def model(web):
    return ChatOpenAI(
        model="toy", base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE
    )


def test_an_answer_has_text_and_usage(web, model):
    web.says(Chunk(0, "Hi!", (72,), None, "stop"))
    found = model.invoke([("system", "be brief"), ("human", "hello")])
    assert found.content == "Hi!"
    assert found.usage_metadata["total_tokens"] == 5
    assert found.response_metadata["finish_reason"] == "stop"
    assert [one["role"] for one in web.sent.messages] == ["system", "user"]


def test_a_stream_adds_up(web, model):
    web.says(*spoken("Hi", " there"))
    chunks = list(model.stream("hello", stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "Hi there"
    assert whole.usage_metadata["output_tokens"] == 2
