"""With `deterministic`, tokens and log-probabilities are the same to the bit in any batch."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints

pytestmark = pytest.mark.torch
# Shared keys, norms of heads, windows, capped scores and tanh, learned positions, ALiBi.
MODELS = ["llama", "qwen3", "mistral", "gemma2", "gpt2", "baichuan2-13b"]
COUNT = 8
# Of lengths around those of tiles (8 queries, 128 keys) and of pieces.
LENGTHS = [150, 1, 9, 130, 37, 64, 8, 127]
SHARED = 70  # tokens that the first two prompts begin with


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def opened(directory, **options):
    sizes = {"max_num_seqs": 8, "block_size": 8, "kv_cache_memory": 2**22}
    config = EngineConfig(**{**sizes, "deterministic": True, "device": "cpu", **options})
    return Engine(open_runner(directory, "torch", config), None, config)


def prompts():
    first, *others = (checkpoints.prompts(1, seed=length, longest=length)[0] for length in LENGTHS)
    return [first, (*first[:SHARED], *others[0]), *others[1:]]


def params(index):
    """Greedy ones and sampled ones; log-probabilities of prompt and answer."""
    return SamplingParams(
        max_tokens=COUNT, temperature=float(index % 2), seed=index, ignore_eos=True, logprobs=3,
        prompt_logprobs=1 if index == 3 else None,
    )  # fmt: skip


def answers(engine, numbers):
    """All that is said of each request, with every float as it is."""
    texts = prompts()
    found = {f"{number}": [] for number in numbers}
    for number in numbers:
        engine.add(f"{number}", texts[number], params(number))
    while engine.has_work:
        for request_id, one in engine.step():
            pairs = zip(one.token_ids, one.logprobs, strict=True)
            found[request_id] += [(one.index, *pair) for pair in pairs]
    return {int(request_id): one for request_id, one in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_answer_is_the_same_alone_and_in_a_batch(root, name):
    directory = checkpoints.build(name, root, **checkpoints.two_layers(name))
    alone = {}
    single = opened(directory, max_num_batched_tokens=512, enable_prefix_caching=False)
    for number in range(len(LENGTHS)):
        alone |= answers(single, [number])
    together = opened(directory, max_num_batched_tokens=512)
    assert answers(together, range(8)) == alone
    assert answers(together, range(7, -1, -1)) == alone  # from cached prompts
    assert together.stats().num_cache_hits > 0
    pieces = opened(directory, max_num_batched_tokens=21, num_speculative_tokens=0)
    assert answers(pieces, [5, 3, 1, 7, 0, 6, 2, 4]) == alone


def test_the_logits_are_those_of_the_reference(root):
    directory = checkpoints.build("llama", root / "reference")
    engine = opened(directory)
    wanted = checkpoints.logits(directory, prompts()[3])
    exact = wanted - np.log(np.exp(wanted).sum(-1, keepdims=True))
    found = answers(engine, [3])[3]
    scored = [(token, entry[0]) for index, token, entry in found if index < 0 and entry]
    assert len(scored) == len(prompts()[3]) - 1
    for row, (token, entry) in zip(exact, scored, strict=False):
        assert abs(entry.logprob - row[token]) < 1e-4


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("llama", {"dtype": "bf16"}, "dtype is 'bf16', expected 'f32'"),
        ("llama", {"max_loras": 1}, "adapters are not supported"),
        ("llama", {"tensor_parallel": 2}, "tensor_parallel is 2, expected 1"),
        ("lfm2", {}, "Lfm2ForCausalLM has states beside keys and values"),
        ("mixtral", {}, "MixtralForCausalLM has a mixture of experts"),
    ],
)
def test_nondeterministic_option_or_model_is_refused(root, name, options, reason):
    directory = checkpoints.build(name, root / "refused")
    with pytest.raises(StartError, match=f"deterministic: {reason}"):
        opened(directory, **options)


@pytest.mark.parametrize("runtime", ["openvino", "mindspore", "mindir", "agents"])
def test_runtime_without_deterministic_mode_is_refused_by_name(tmp_path, runtime):
    with pytest.raises(StartError, match=f"{runtime}' has no deterministic, expected one of torch"):
        open_runner(tmp_path, runtime, EngineConfig(deterministic=True))
