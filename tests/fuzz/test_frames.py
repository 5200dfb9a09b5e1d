"""Edited sequences of HTTP/2 frames: each connection ends, and the server is as it was.

`python -m tests.fuzz.frame_campaign` sends more.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.frontends.http2.frames import PREFACE
from tests.frontends.grpc.interop.service import Interop
from tests.fuzz.frame_campaign import end_of, run
from tests.fuzz.frames import GOAWAY, HEADERS, SETTINGS, Frame, Maker

SEQUENCES = 1_000


@pytest.fixture(scope="module")
def served() -> Iterator[Interop]:
    background = BackgroundLoop()
    with closing(Interop(background, linger_timeout=0.1)) as made:
        yield made
    background.close()


def test_no_sequence_of_frames_harms_the_server(served: Interop) -> None:
    report = run(served, 20, range(SEQUENCES))
    assert report.findings == []
    assert report.num_sent == SEQUENCES
    codes = {int(end.split()[1]) for end in report.ends if end.startswith("GOAWAY")}
    assert {0x1, 0x3, 0x5, 0x6, 0x9} <= codes  # the edits break rules of every kind
    assert report.ends["open"] > SEQUENCES // 10  # and leave many sequences right


def test_a_number_and_a_seed_always_make_the_same_sequence() -> None:
    made = [Maker(1, number).make() for number in range(200)]
    assert made == [Maker(1, number).make() for number in range(200)]
    assert len(set(made)) == 200
    assert sum(data.startswith(PREFACE) for data in made) > 150


@pytest.mark.parametrize(
    "answer",
    [
        Frame(SETTINGS).to_bytes()[:-1],
        Frame(GOAWAY, 0, 0, bytes(8)).to_bytes(),
        Frame(SETTINGS).to_bytes() + Frame(HEADERS, 5, 1, b"\x88").to_bytes() * 2,
        Frame(SETTINGS).to_bytes() + Frame(HEADERS, 5, 2, b"\x88").to_bytes(),
        Frame(SETTINGS).to_bytes() + Frame(HEADERS, 5, 1, b"\xff\xff").to_bytes(),
    ],
    ids=["cut", "no settings", "after the end", "of the server", "unreadable"],
)
def test_a_malformed_answer_is_noticed(answer: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - of hpack, or an assertion
        end_of(answer)
