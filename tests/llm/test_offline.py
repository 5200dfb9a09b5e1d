import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation

VOCAB = 128
TEMPLATE = (
    "{% for d in documents or [] %}<d>{{ d.text }}{% endfor %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """A model whose token i is the ASCII character i."""
    directory = tmp_path_factory.mktemp("letters")
    # Byte-level BPE writes bytes that are not printable as U+0100 and so on, in order.
    printable = {char for char in ByteLevel.alphabet() if char.isascii()}
    rest = [byte for byte in range(VOCAB) if chr(byte) not in printable]
    vocab = {char: ord(char) for char in printable}
    vocab |= {chr(256 + place): byte for place, byte in enumerate(rest)}
    inner = Inner(BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = ByteLevelDecoder()
    inner.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 127}))
    return directory


@pytest.fixture
def llm(directory):
    with LLM(directory, runtime="toy", block_size=4, max_num_batched_tokens=64) as llm:
        yield llm


def greedy(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 5, "ignore_eos": True, **options})


def expected(text, count=5):
    return tuple(continuation(list(text.encode()), count, VOCAB))


def test_texts_are_continued_in_their_order(llm):
    prompts = [f"prompt {number}" for number in range(20)]
    answers = llm.generate(prompts, greedy())
    assert [answer.prompt for answer in answers] == prompts
    for prompt, answer in zip(prompts, answers, strict=True):
        (output,) = answer.outputs
        assert answer.prompt_token_ids == tuple(prompt.encode())
        assert output.token_ids == expected(prompt)
        assert output.text == bytes(output.token_ids).decode()
        assert output.finish_reason is FinishReason.LENGTH
        assert output.logprobs is None
        assert answer.prompt_logprobs is None


def test_a_single_text_gives_a_list_with_an_answer(llm):
    (answer,) = llm.generate("Hello", greedy())
    assert answer.outputs[0].token_ids == expected("Hello")


@pytest.mark.parametrize(
    "prompts",
    [
        list(b"Hello"),
        [list(b"Hello")],
        np.frombuffer(b"Hello", np.uint8),
        [np.frombuffer(b"Hello", np.uint8)],
    ],
)
def test_token_ids_are_prompts_too(llm, prompts):
    (answer,) = llm.generate(prompts, greedy())
    assert answer.prompt is None
    assert answer.prompt_token_ids == tuple(b"Hello")
    assert answer.outputs[0].token_ids == expected("Hello")


def test_no_prompts_give_no_answers(llm):
    assert llm.generate([], greedy()) == []


def test_each_prompt_can_have_its_own_params(llm):
    answers = llm.generate(["a", "b"], [greedy(max_tokens=2), greedy(max_tokens=3, n=2)])
    lengths = [[len(output.token_ids) for output in answer.outputs] for answer in answers]
    assert lengths == [[2], [3, 3]]
    assert [output.index for output in answers[1].outputs] == [0, 1]


def test_without_params_there_are_the_defaults(llm):
    (answer,) = llm.generate("a")
    assert len(answer.outputs[0].token_ids) <= 16


def test_logprobs_come_with_the_answer(llm):
    (answer,) = llm.generate("abc", greedy(logprobs=1, prompt_logprobs=2))
    (output,) = answer.outputs
    assert [entry[0].token_id for entry in output.logprobs] == list(output.token_ids)
    assert [len(entry) for entry in answer.prompt_logprobs] == [0, 3, 3]


def test_the_models_end_token_ends_an_answer(directory, llm):
    prompt = next(chr(first) for first in range(97, 123) if 127 in expected(chr(first), 100))
    (answer,) = llm.generate(prompt, greedy(max_tokens=100, ignore_eos=False))
    (output,) = answer.outputs
    assert output.finish_reason is FinishReason.STOP
    assert output.token_ids[-1] == 127
    assert 127 not in output.text.encode()


def test_a_chat_is_rendered_and_answered(llm):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (answer,) = llm.chat(messages, greedy())
    assert answer.prompt == "<s>Be brief.<u>Hi<a>"
    assert answer.outputs[0].token_ids == expected(answer.prompt)


def test_several_chats_are_answered_at_once(llm):
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "Bye")]
    assert [answer.prompt for answer in llm.chat(chats, greedy())] == ["<u>Hi<a>", "<u>Bye<a>"]


def test_template_options_reach_the_chat_template(llm):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes, "}]
    (answer,) = llm.chat(messages, greedy(), continue_final_message=True)
    assert answer.prompt == "<u>Hi<a>Yes, "
    (answer,) = llm.chat(messages[:1], greedy(), add_generation_prompt=False)
    assert answer.prompt == "<u>Hi"
    (answer,) = llm.chat(messages[:1], greedy(), documents=[{"text": "One."}])
    assert answer.prompt == "<d>One.<u>Hi<a>"


def test_a_bad_prompt_is_named_and_nothing_is_left_behind(llm):
    with pytest.raises(InvalidInputs, match=r"prompts\[1\]: the prompt is empty"):
        llm.generate(["good", "", "good"], greedy())
    with pytest.raises(InvalidInputs, match=r"^the prompt has token id 128"):
        llm.generate([[128]], greedy())
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert llm.generate("good", greedy())[0].outputs[0].token_ids == expected("good")


@pytest.mark.parametrize(
    ("prompts", "says"),
    [(7, "prompts is 7"), ([7.5], "token ids"), ([None], "token ids"), ([["a"]], "token ids")],
)
def test_invalid_prompts_are_refused(llm, prompts, says):
    with pytest.raises(InvalidInputs, match=says):
        llm.generate(prompts, greedy())


def test_params_must_be_single_or_as_many_as_prompts(llm):
    with pytest.raises(InvalidInputs, match="1 params for 2 prompts, expected one or as many"):
        llm.generate(["a", "b"], [greedy()])


def test_a_chat_that_is_none_is_refused(llm):
    with pytest.raises(InvalidInputs, match="role None, expected a name"):
        llm.chat([{"content": "x"}])


def test_an_interrupted_call_leaves_nothing_behind(llm, monkeypatch):
    def interrupt(runner, step):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ToyRunner, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], greedy())
    assert llm.stats().num_free_blocks == llm.stats().num_blocks
    assert llm.generate("good", greedy())[0].outputs[0].token_ids == expected("good")


def test_a_model_without_tokenizer_takes_token_ids_only(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": [3, 9]}')
    with LLM(tmp_path, runtime="toy") as llm:
        (answer,) = llm.generate([5, 7], greedy(allowed_token_ids=[9], ignore_eos=False))
        assert answer.outputs[0].text == ""
        assert answer.outputs[0].token_ids == (9,)
        with pytest.raises(InvalidInputs, match="no tokenizer.json: send lists of token ids"):
            llm.generate("text")
        with pytest.raises(InvalidInputs, match="no chat template"):
            llm.chat([{"role": "user", "content": "x"}])


def test_an_unknown_option_is_refused_with_the_known_options(directory):
    with pytest.raises(
        InvalidInputs, match="there is no option 'sequences', expected one of max_model"
    ):
        LLM(directory, runtime="toy", sequences=3)
    with pytest.raises(
        InvalidInputs, match="there is no option '.*'; did you mean 'max_num_seqs'?"
    ):
        LLM(directory, runtime="toy", max_num_seq=3)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0, expected an int of 1 to 4096"),
        ({"max_num_batched_tokens": 4}, "max_num_batched_tokens is 4, expected at least"),
        ({"num_speculative_tokens": 99}, "num_speculative_tokens is 99, expected an int of 0 to"),
        ({"kv_cache_memory": "2G"}, "kv_cache_memory is '2G', expected an int >= 1"),
        ({"max_ngram": 2, "min_ngram": 3}, "max_ngram is 2, expected at least min_ngram=3"),
    ],
)
def test_an_option_out_of_range_is_refused(directory, option, says):
    with pytest.raises(InvalidInputs, match=says):
        LLM(directory, runtime="toy", **option)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StartError, match="nowhere', expected a model's directory"):
        LLM(tmp_path / "nowhere", runtime="toy")


def test_an_unknown_runtime_is_refused_with_the_known_runtimes(directory):
    with pytest.raises(StartError, match="runtime is 'abacus', expected one of openvino, torch"):
        LLM(directory, runtime="abacus")


def test_a_closed_llm_says_so(directory):
    llm = LLM(directory, runtime="toy")
    llm.close()
    llm.close()
    with pytest.raises(ServingError, match="this LLM is closed"):
        llm.generate("a")


def test_the_first_line_names_the_capacity_of_the_cache(directory, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    memory = 100 * 4 * 8  # a hundred blocks of four tokens of eight bytes
    options = {"block_size": 4, "max_model_len": 50, "kv_cache_memory": memory}
    LLM(directory, runtime="toy", **options).close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        ": runtime toy; weights as stored; cache of 400 tokens (100 blocks of 4), 8.0 sequences "
        "of 50; at most 64 sequences and 512 tokens in a step"
    )


def test_nothing_is_printed_where_nobody_looks(directory, capsys):
    with LLM(directory, runtime="toy") as llm:
        llm.generate("a", greedy())
    assert capsys.readouterr() == ("", "")


def test_an_offline_model_of_ascend_is_refused_with_advice(tmp_path):
    (tmp_path / "net.om").write_bytes(b"IMOD")
    with pytest.raises(StartError, match=r"net.om', which is an offline model .* serve the MindIR"):
        LLM(tmp_path / "net.om")
