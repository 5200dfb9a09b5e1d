"""Times of words: the way through the weights beside transformers' own, and words of tokens."""

import numpy as np
import pytest

from mindspore_serving.core.speech_messages import SpokenSegment
from mindspore_serving.llm.speech.alignment import Aligner, cheapest_way, with_words
from mindspore_serving.llm.speech.decoding import PieceText
from mindspore_serving.llm.speech.settings import open_speech_model
from tests.llm import hearing

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (5, 40), (30, 12)])
def test_the_cheapest_way_is_that_of_transformers(shape):
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    costs = np.random.default_rng(sum(shape)).standard_normal(shape)
    for ours, theirs in zip(cheapest_way(costs), _dynamic_time_warping(costs), strict=True):
        assert np.array_equal(ours, theirs)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words")
    hearing.make_directory(directory)
    return open_speech_model(directory)


def words(model, text, language="en", boundaries=None):
    """Words of a text whose tokens attend to one frame after another, ten for each."""
    tokens = tuple(model.tokenizer.encode(text, add_special=False))

    def scores(whole):
        result = np.full((2, len(whole), 1500), -10.0, np.float32)
        for number in range(len(whole)):
            begin = 10 * (number - 3)
            result[:, number, max(0, begin) : max(0, begin) + 10] = 10.0
        return result

    segment = SpokenSegment(text, 0.0, 9.0, tokens, 30.0, 0.0, -0.1, 1.0, 0.0)
    read = PieceText([segment], None, len(tokens), [-0.5] * len(tokens))
    seconds = (len(tokens) + 2) * 10 * 0.02
    (changed,) = with_words(read, Aligner(scores, [1, 2, 3], seconds), model, language).segments
    return changed.words


def test_words_have_their_marks_and_adjacent_times(model):
    found = words(model, ' Hi, "Bob" said.')
    assert [word.text for word in found] == [" Hi,", ' "Bob"', " said."]
    assert all(word.probability == pytest.approx(np.exp(-0.5)) for word in found)
    starts = [word.start for word in found]
    # A token is ten frames of 0.02 s, and the piece begins at 30 s.
    assert starts == pytest.approx([30.0, 30.0 + 0.2 * 4, 30.0 + 0.2 * 10], abs=0.07)
    assert all(a.end == b.start for a, b in zip(found, found[1:], strict=False))


def test_characters_are_words_where_a_language_has_no_spaces(model):
    assert [word.text for word in words(model, "你好。", "zh")] == ["你", "好。"]
