"""The access log and the counts of responses: which protocol a request came by."""

import pytest

from mindspore_serving.frontends.access import protocol_of


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/model/add:add_one", "rest"),
        ("/v2/models/add/infer", "v2"),
        ("/v1/models/add:predict", "kserve"),
        ("/v1/models/add", "openai"),
        ("/v1/chat/completions", "openai"),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messages_of_nobody", "openai"),
        ("/api/chat", "ollama"),
        ("/generate_stream", "tgi"),
        ("/models/m/generate", "llm_serving"),
        ("/readyz/add", "server"),
        ("/nowhere", "other"),
    ],
)
def test_a_response_counts_for_the_protocol_of_its_path(path, protocol):
    assert protocol_of(path) == protocol
