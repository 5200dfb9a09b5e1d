"""Grammars on real runtimes and a real model, whose weights are random."""

import json
import re

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from tests.llm import checkpoints
from tests.llm.running import require
from tests.llm.schemas import COMPACT, fulfils


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model whose token i is the ASCII character i; a fifth of its logits are of no token."""
    directory = checkpoints.build("llama", tmp_path_factory.mktemp("models"))
    printable = {char for char in ByteLevel.alphabet() if char.isascii()}
    rest = [byte for byte in range(128) if chr(byte) not in printable]
    vocab = {char: ord(char) for char in printable}
    vocab |= {chr(256 + place): byte for place, byte in enumerate(rest)}
    inner = Inner(BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = ByteLevelDecoder()
    inner.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(params=["openvino", "native", pytest.param("torch", marks=pytest.mark.torch)])
def llm(request, directory):
    require(request.param)
    options = {"max_model_len": 320, "block_size": 32, "kv_cache_memory": 2**22, "dtype": "f32"}
    options |= {"num_speculative_tokens": 2, "adaptive_speculation": False}
    with LLM(directory, request.param, **options) as llm:
        yield llm


def test_every_answer_follows_the_grammar(llm):
    grammar = Grammar("json_schema", json.dumps(COMPACT))
    params = [SamplingParams(max_tokens=300, n=2, seed=1), SamplingParams(max_tokens=300, seed=2)]
    for answer in llm.generate(["Hello", "you"], params, grammar=grammar):
        for output in answer.outputs:
            assert fulfils(json.loads(output.text), COMPACT)
            assert output.finish_reason is FinishReason.STOP
    (answer,) = llm.generate("Hello", grammar=Grammar("regex", "[a-f]{3}"))
    assert re.fullmatch("[a-f]{3}", answer.outputs[0].text)


def test_a_grammar_that_cannot_be_used_is_refused(llm):
    with pytest.raises(InvalidInputs, match="frog"):
        llm.generate("Hello", grammar=Grammar("json_schema", '{"type": "frog"}'))


def test_a_grammar_needs_a_tokenizer(directory, tmp_path):
    for file in directory.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with (
        LLM(tmp_path, "toy", max_model_len=64) as llm,
        pytest.raises(InvalidInputs, match="tokenizer"),
    ):
        llm.generate([1, 2], grammar=Grammar("regex", "a"))
