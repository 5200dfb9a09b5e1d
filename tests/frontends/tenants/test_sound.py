"""Use of models of sound: tokens of recordings, and phonemes also of a text that was left."""

import pytest

from mindspore_serving.core.llm_messages import CODEC, encode_events
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.core.speech_messages import SpeechEnded, Spoken, Transcribed
from mindspore_serving.frontends.tenants.metering import MeteredInference
from tests.frontends.inference import FakeInference


class Noted:
    """The fields of the calls that ended."""

    def __init__(self):
        self.rows = []

    def add(self, kind, tenant, **fields):
        self.rows.append(fields)


@pytest.mark.parametrize(
    ("method", "events", "is_left", "counts"),
    [
        ("@speak", [Spoken(b"a", 5), Spoken(b"b", 7), SpeechEnded(1.0, 12)], False, (12, None)),
        ("@speak", [Spoken(b"a", 5)], True, (5, None)),
        ("@transcribe", [Transcribed("en", 2.0, 4, 9)], False, (4, 9)),
    ],
)
async def test_sound_is_charged_by_tokens_and_phonemes(method, events, is_left, counts):
    inner, noted = FakeInference(), Noted()
    meter = MeteredInference(inner, {}, lambda servable: True)
    meter.audit = noted
    call = meter.submit(Request("voice", method, 0, CODEC, b"", id="1"), lambda reply: None)
    for number, event in enumerate(events, 1):
        is_last = number == len(events) and not is_left
        inner.calls[-1].on_reply(Reply([encode_events([event])], is_last=is_last))
    if is_left:
        call.cancel()
    (row,) = noted.rows
    assert (row["prompt_tokens"], row["generated_tokens"]) == counts
    assert row["result"] == ("CANCELLED" if is_left else "OK")
