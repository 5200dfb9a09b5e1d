"""Limits of reasoning: its end is forced in time, and the answer goes on behind it."""

import pytest

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.chat.reasoning_formats import reason_first
from mindspore_serving.llm.engine.thinking import ThinkingLimit, ThinkingState
from tests.llm.engine.test_grammar_engine import COMPILER, NonsenseRunner, make, run
from tests.llm.engine.test_speculation import Rounds
from tests.llm.engine.test_speculation import make as speculating
from tests.llm.engine.test_speculation import run as run_to_end
from tests.llm.tokenizers_trained import opened

BEGIN, END, PERIOD, WORD = 90, 91, 46, 50


def limit(max_tokens: int, **changes: object) -> ThinkingLimit:
    fields = {
        "max_tokens": max_tokens,
        "begin_ids": (BEGIN,),
        "has_ended": lambda recent: recent[-1] == END,
        "closing_ids": (END,),
        "is_open": True,
        "ends_sentence": lambda token_id: token_id == PERIOD,
    }
    return ThinkingLimit(**{**fields, **changes})  # type: ignore[arg-type]


def forced(state: ThinkingState, tokens: list[int]) -> list[int | None]:
    """What must follow each of `tokens`."""
    return [state.after(tokens[:count]).forced for count in range(1, len(tokens) + 1)]


def test_end_is_forced_at_the_limit_and_then_any_token_may_follow() -> None:
    state = limit(4).begin()
    assert forced(state, [WORD] * 4) == [None, None, None, END]
    assert forced(state, [*[WORD] * 4, END, WORD, WORD]) == [None] * 3 + [END] + [None] * 3


def test_end_is_forced_behind_a_sentence_shortly_before_the_limit() -> None:
    state = limit(80).begin()
    assert state.after([PERIOD] * 69).forced is None
    assert state.after([WORD] * 69).after([PERIOD]).forced == END
    assert state.after([WORD] * 79).forced is None
    assert state.after([WORD] * 80).forced == END


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    assert set(forced(limit(4).begin(), [WORD, WORD, END, *[WORD] * 20])) == {None}


def test_tokens_count_from_the_marker_that_opens_reasoning() -> None:
    state = limit(2, begin_ids=(BEGIN, 7, 8), is_open=False).begin()
    assert set(forced(state, [WORD] * 9)) == {None}
    assert forced(state, [BEGIN, BEGIN, 7, 8, WORD, WORD]) == [None] * 5 + [END]
    assert set(forced(state, [BEGIN, 7, WORD, WORD, WORD, WORD])) == {None}


def test_second_reasoning_of_an_answer_has_the_rest_of_the_limit() -> None:
    state = limit(3, is_open=False).begin()
    assert forced(state, [BEGIN, WORD, WORD, END, WORD, BEGIN, WORD]) == [None] * 6 + [END]
    assert state.after([BEGIN, WORD, WORD, WORD, END, BEGIN]).forced == END


def test_without_any_budget_the_end_comes_first() -> None:
    assert limit(0).begin().forced == END
    assert limit(0, is_open=False).begin().after([BEGIN]).forced == END


def test_closing_of_several_tokens_is_forced_in_order() -> None:
    state = limit(1, closing_ids=(END, 5, 6)).begin()
    assert forced(state, [WORD, END, 5, 6, WORD]) == [END, 5, 6, None, None]


@pytest.mark.parametrize("num_drafts", [0, 4])
def test_end_is_forced_at_the_same_token_with_drafts_and_without(num_drafts: int) -> None:
    engine = speculating(Rounds(), num_speculative_tokens=num_drafts, adaptive_speculation=False)
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    thinking = limit(15, ends_sentence=lambda _: False)
    engine.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3, params, thinking=thinking)
    said, *_ = run_to_end(engine)
    tokens = said["a", 0]
    assert tokens[:16] == [*([1, 2, 3, 4, 5, 6, 7, 8, 9] * 2)[:15], END]
    assert END not in tokens[16:]
    assert len(tokens) == 40


def test_each_answer_of_a_request_has_the_limit() -> None:
    engine = make(runner=NonsenseRunner())
    params = SamplingParams(max_tokens=12, seed=5, n=3, ignore_eos=True)
    engine.add("a", [5, 6, 7], params, thinking=limit(5, ends_sentence=lambda _: False))
    answers = run(engine)
    assert len(answers) == 3
    assert all(END in tokens[:6] for _, tokens, *_ in answers.values())


def test_forced_end_leads_to_the_answer_that_a_grammar_demands() -> None:
    grammar = reason_first("think_open", Grammar("regex", "yes|no"))
    ids = opened("byte_level").encode("</think>", add_special=False)
    engine = make(runner=NonsenseRunner())
    engine.add(
        "a",
        [5, 6, 7],
        SamplingParams(max_tokens=200, seed=5),
        grammar=COMPILER.compile(grammar),
        thinking=limit(
            20, has_ended=lambda _: False, closing_ids=ids, ends_sentence=lambda _: False
        ),
    )
    text, *_ = run(engine)["a", 0]
    assert text.partition("</think>")[2].strip() in ("yes", "no")
