"""Errors of language models cross processes as messages with their reason."""

import pytest

from mindspore_serving.core.llm_messages import Refused, RequestRefused, to_refused
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded, ServingError


def test_refusal_keeps_its_message():
    refused = Refused("context", "too long", num_prompt_tokens=9, max_model_len=8)
    assert to_refused(RequestRefused(refused)) is refused


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Overloaded("full", 2.5), Refused("overloaded", "full", retry_after=2.5)),
        (InvalidField("top_p", "is 3"), Refused("input", "top_p is 3", field="top_p")),
        (InvalidInputs("no prompt"), Refused("input", "no prompt")),
        (ServingError("worker failed"), None),
    ],
)
def test_errors_become_refusals_only_before_acceptance(error, refused):
    assert to_refused(error) == refused
