"""The oldest turns of a conversation are left out until it fits."""

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Generate, RequestRefused
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.processing.chat_prompt import Messages, shortened
from mindspore_serving.llm.processing.processor import Processor
from tests.frontends.openai.serving import CARD
from tests.llm.tokenizers_trained import opened

SYSTEM, FIRST, CALL, RESULT, SECOND, ANSWER, LAST = TALK = [
    {"role": role, "content": text}
    for role, text in (
        ("system", "Be short."),
        ("user", "one " * 10),
        ("assistant", "a call"),
        ("tool", "its result"),
        ("user", "two " * 10),
        ("assistant", "an answer"),
        ("user", "three"),
    )
]


def kept(most: int) -> Messages:
    """Of which there may be `most`."""
    return shortened(TALK, lambda messages: len(messages) <= most)


def test_whole_turns_are_left_out_and_the_system_stays() -> None:
    assert kept(7) == kept(100) == TALK
    assert kept(6) == kept(4) == [SYSTEM, SECOND, ANSWER, LAST]
    assert kept(3) == kept(2) == [SYSTEM, LAST]


def test_the_last_turn_is_kept_even_if_too_long() -> None:
    assert kept(0) == [SYSTEM, LAST]
    assert shortened([RESULT], lambda _: False) == [RESULT]


TOKENIZER = opened("byte_level")
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")


def text(room: int, **fields: object) -> str | None:
    card = replace(CARD, max_model_len=room)
    return Processor(TOKENIZER, TEMPLATE, card).read(Generate(messages=TALK, **fields)).text


def test_the_prompt_has_as_many_turns_as_fit_the_context() -> None:
    whole = text(10_000, drop_turns=True)
    assert whole == text(10_000)
    last = "system: Be short.\nuser: three\n"
    count = len(TOKENIZER.encode(last))
    assert text(count + 1, drop_turns=True) == last
    for drops, room in ((False, count + 1), (True, count)):
        with pytest.raises(RequestRefused, match="the model takes"):
            text(room, drop_turns=drops)
