"""Recordings are cut at quiet places, and silence is not read."""

import numpy as np
import pytest

from mindspore_serving.llm.sounds.features import RATE, SAMPLES
from mindspore_serving.llm.speech.pieces import cut


def loud(seconds):
    return (np.random.default_rng(0).standard_normal(int(seconds * RATE)) * 3000).astype(np.int16)


def silent(seconds):
    return np.zeros(int(seconds * RATE), np.int16)


def test_a_short_recording_is_a_single_piece():
    (piece,) = cut(loud(7.3))
    assert (piece.begin, piece.end) == (0, int(7.3 * RATE))


@pytest.mark.parametrize("seconds", [0.001, 1, 30, 600])
def test_silence_has_no_piece(seconds):
    assert cut(silent(seconds)) == []


def test_a_long_recording_is_cut_at_quiet_places():
    parts = [loud(22), silent(0.5), loud(25), silent(0.5), loud(20)]
    pieces = cut(np.concatenate(parts))
    assert len(pieces) == 3
    assert pieces[0].begin == 0
    for piece, quiet in zip(pieces, ((22.0, 22.5), (47.5, 48.0)), strict=False):
        assert quiet[0] <= piece.end / RATE <= quiet[1]
    assert pieces[-1].end == sum(map(len, parts))


def test_pieces_are_of_30_seconds_at_most_and_lose_no_sound():
    recording = loud(125)
    pieces = cut(recording)
    assert all(0 < piece.end - piece.begin <= SAMPLES for piece in pieces)
    assert pieces[0].begin == 0
    assert pieces[-1].end == len(recording)
    assert all(a.end == b.begin for a, b in zip(pieces, pieces[1:], strict=False))


def test_silence_between_pieces_is_left_out():
    pieces = cut(np.concatenate([silent(100), loud(3), silent(300), loud(2)]))
    assert [round(piece.begin / RATE, 1) for piece in pieces] == [99.8, 402.8]
    assert sum(piece.seconds for piece in pieces) < 36


def test_the_quietest_sample_does_not_wrap():
    (piece,) = cut(np.full(1001, -32768, np.int16))
    assert piece.end == 1001
