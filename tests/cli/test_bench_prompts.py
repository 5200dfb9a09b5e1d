"""What `bench` asks: lengths, shared beginnings, files."""

from itertools import islice
from statistics import mean

import pytest

from mindspore_serving.cli.bench_prompts import (
    Lengths,
    Mix,
    from_lines,
    generate,
    to_lengths,
)
from mindspore_serving.errors import InvalidInputs


def test_two_answers_tell_how_many_words_a_prompt_needs() -> None:
    lengths = to_lengths((1, 12), (101, 162))  # 1.5 tokens a word, 10.5 before them
    assert lengths == Lengths(10.5, 1.5)
    assert lengths.words(160.5) == 100
    assert lengths.words(3) == 1


def test_equal_lengths_are_equal_and_no_two_prompts_are() -> None:
    prompts = list(islice(generate(Mix(40, 7), Lengths(10, 2.0), seed=1), 50))
    assert {prompt.text.count(" ") + 1 for prompt in prompts} == {15}  # (40 - 10) / 2
    assert {prompt.max_tokens for prompt in prompts} == {7}
    assert len({prompt.text for prompt in prompts}) == 50


def test_the_same_seed_makes_the_same_prompts() -> None:
    mix = Mix(30, 10, spread=0.5)
    assert list(islice(generate(mix, Lengths(), 3), 9)) == list(
        islice(generate(mix, Lengths(), 3), 9)
    )
    assert next(generate(mix, Lengths(), 3)) != next(generate(mix, Lengths(), 4))


def test_spread_lengths_have_the_mean_that_was_asked_for() -> None:
    prompts = list(islice(generate(Mix(200, 100, spread=0.5), Lengths(), seed=0), 4000))
    # the error of the mean is 200 * 0.53 / sqrt(4000) = 1.7
    assert mean(prompt.text.count(" ") + 1 for prompt in prompts) == pytest.approx(200, abs=7)
    assert mean(prompt.max_tokens for prompt in prompts) == pytest.approx(100, abs=4)
    assert len({prompt.max_tokens for prompt in prompts}) > 100


def test_a_shared_beginning_is_the_same_words_and_counts_into_the_length() -> None:
    prompts = list(islice(generate(Mix(60, 5, shared=40), Lengths(0, 2.0), seed=2), 20))
    words = [prompt.text.split() for prompt in prompts]
    assert {tuple(one[:20]) for one in words} == {tuple(words[0][:20])}
    assert {len(one) for one in words} == {30}
    assert len({tuple(one[20:]) for one in words}) == 20


def test_prompts_come_from_a_file_with_their_own_lengths() -> None:
    one, two = from_lines('{"prompt": "a b"}\n\n{"prompt": "c", "max_tokens": 3, "id": 1}\n', 9)
    assert (one.text, one.max_tokens) == ("a b", 9)
    assert (two.text, two.max_tokens) == ("c", 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no prompt"),
        ('{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
        ('["a"]', "line 1: expected"),
        ('{"prompt": 3}', "line 1: expected"),
        ('{"prompt": "a", "max_tokens": 0}', "line 1: expected"),
        ('{"prompt": "a", "max_tokens": "5"}', "line 1: expected"),
    ],
)
def test_a_wrong_line_is_named(text: str, told: str) -> None:
    with pytest.raises(InvalidInputs, match=told):
        from_lines(text, 5)
