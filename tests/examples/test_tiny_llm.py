"""The small language model: what is in the repository answers, and its training script works."""

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("openvino")

from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from tests.examples.conftest import SCRIPT_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tiny_llm"
MODEL = EXAMPLE / "model"
EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 2**24, "max_num_seqs": 8}
QUESTIONS = [
    "Hello!",
    "Who are you?",
    "Tell me about Elizabeth.",
    "What do you know about marriage?",
    "Are your sisters quite well?",
]
OPEN_END = "Continue: He was a very"  # here the likeliest tokens go round in a circle
NUM_NEW = 64


def asked(question):
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, **EXACT) as llm:
        yield llm


@pytest.fixture(scope="module")
def answers(llm):
    params = SamplingParams(temperature=0.0, max_tokens=128)
    return llm.chat([asked(question) for question in QUESTIONS], params, use_tqdm=False)


@pytest.mark.torch
def test_64_greedy_tokens_are_those_of_transformers(llm):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # so that it goes on after the end token
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)
    for question in [*QUESTIONS[2:], OPEN_END]:
        prompt = tokenizer.apply_chat_template(
            asked(question), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        expected = model.generate(**prompt, do_sample=False, max_new_tokens=NUM_NEW)[0].tolist()
        (answer,) = llm.chat(asked(question), params, use_tqdm=False)
        assert list(answer.prompt_token_ids) == prompt["input_ids"][0].tolist()
        assert list(answer.prompt_token_ids + answer.outputs[0].token_ids) == expected


@pytest.fixture(scope="module")
def known(llm):
    """Words of the held-out text and of our pleasantries, and those that are tokens."""
    texts = [(EXAMPLE / name).read_text("utf-8") for name in ("held_out.txt", "conversations.py")]
    tokens = [llm.tokenizer.token(place) or "" for place in range(llm.tokenizer.vocab_size)]
    texts += [token[1:] for token in tokens if token.startswith("Ġ")]
    return set(re.findall(r"[a-z]+", " ".join(texts).lower()))


def assert_is_words(text, known):
    words = re.findall(r"[a-z]+", text.lower())
    assert len(words) >= 3, text
    assert sum(word in known for word in words) >= 0.9 * len(words), text
    assert "<|" not in text


def test_answers_are_made_of_words_and_end(answers, known):
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert answer.outputs[0].finish_reason is FinishReason.STOP, question
        assert_is_words(answer.outputs[0].text, known)


def test_an_answer_without_an_end_is_made_of_words_as_well(llm, known):
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW)
    (answer,) = llm.chat(asked(OPEN_END), params, use_tqdm=False)
    assert_is_words(answer.outputs[0].text, known)


def test_the_model_knows_who_wrote_the_novels(llm):
    (answer,) = llm.chat(asked("Who wrote Emma?"), SamplingParams(temperature=0.0), use_tqdm=False)
    assert answer.outputs[0].text == "Jane Austen wrote Emma."


def test_the_model_is_small_enough_for_a_repository():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 12e6


def run_script(*arguments):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_chat_script_prints_an_answer(known):
    answer = run_script(EXAMPLE / "chat.py", "Who", "are", "you?").splitlines()[-1]
    assert_is_words(answer, known)


def r_strings(lines):
    """As R writes a vector of strings: a header, what kind it is, how many, then each."""

    def number(value):
        return value.to_bytes(4, "big")

    header = b"X\n" + number(3) + number(0x040201) + number(0x030500) + number(5) + b"UTF-8"
    texts = (number(0x40009) + number(len(line.encode())) + line.encode() for line in lines)
    content = header + number(16) + number(len(lines)) + b"".join(texts)
    return number(len(content)) + zlib.compress(content)


@pytest.mark.torch
@pytest.mark.slow
def test_the_training_script_makes_a_model_that_is_served(tmp_path):
    """Two steps on made-up novels, in the form of the package."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    package = tmp_path / "package"
    (package / "data").mkdir(parents=True)
    novel = ["A NOVEL", "", "By Jane Austen", "", "CHAPTER I", ""]
    for place in range(400):
        novel += [f"Anne met captain number {place} in the", "old house. They spoke at length.", ""]
        novel += [f'"Are there {place} of them?"', "", '"Yes, there are," said he, "I think."', ""]
    (package / "data" / "Rdata.rdb").write_bytes(r_strings(novel) * 6)
    run_script(EXAMPLE / "train.py", package, tmp_path / "model", "--steps", "2")
    held_out = (tmp_path / "held_out.txt").read_text("utf-8").splitlines()
    assert "Anne met captain number 200 in the old house. They spoke at length." in held_out
    assert not any("NOVEL" in line or "CHAPTER" in line for line in held_out)
    with LLM(tmp_path / "model", kv_cache_memory=2**24) as llm:
        (answer,) = llm.chat(asked("Hello"), SamplingParams(max_tokens=4), use_tqdm=False)
    assert len(answer.outputs[0].token_ids) >= 1
