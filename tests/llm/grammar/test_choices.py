"""Texts of which an answer must be one."""

import numpy as np
import pytest

from mindspore_serving.frontends.openai.grammars import StructuredOutputs, to_grammar
from mindspore_serving.llm.grammar.compiler import GrammarCompiler
from tests.llm.tokenizers_trained import opened

END = 1  # "</s>" of the byte-level tokenizer


@pytest.mark.parametrize(
    "choices",
    [
        ["yes"],
        ["yes", "yes, it is"],
        ['n"o', "a\nb", "\\", "é"],
        [f"{n} bottles" for n in range(2000)],
    ],
    ids=["one", "a beginning of another", "signs", "thousands"],
)
def test_an_answer_equals_a_choice(choices):
    tokenizer = opened("byte_level")
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, (END,))
    compiled = compiler.compile(to_grammar(None, StructuredOutputs(choice=choices)))
    assert {written(tokenizer, compiled.begin(), seed) for seed in range(20)} <= set(choices)


def written(tokenizer, state, seed):
    """What a model writes that chooses by chance."""
    rng = np.random.default_rng(seed)
    ids = []
    while not state.is_finished:
        mask = np.frombuffer(state.matcher.compute_bitmask(), np.uint8)
        token_id = int(rng.choice(np.nonzero(np.unpackbits(mask, bitorder="little"))[0]))
        if token_id == END:
            break
        ids.append(token_id)
        state.advance(token_id)
        assert state.error is None
    return tokenizer.decode(ids)
