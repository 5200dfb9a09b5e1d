"""What preparing a request to a language model costs: on the worker's thread, and by way of a child
process.  Says which requests are small enough for the thread (`llm.processing.prepared.is_small`).

    python -m benchmarks.llm_preparation [--rounds 50]
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.llm_model import CONFIG, write_tokenizer
from benchmarks.report import print_json, print_table
from mindspore_serving.core.llm_messages import Generate, Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.isolation.children import ForkServer
from mindspore_serving.isolation.pool import JobFailure, Pool, PoolLimits
from mindspore_serving.llm.processing import child
from mindspore_serving.llm.processing.prepared import decode_result, encode_job, is_small
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

WORDS = Path(argparse.__file__).read_text()
CARD = ModelCard(
    architecture="LlamaForCausalLM",
    runtime="",
    dtype="",
    quantization="",
    max_model_len=1 << 20,
    vocab_size=CONFIG["vocab_size"],
    can_generate=True,
    can_embed=False,
    embedding_size=0,
    has_chat_template=False,
    tool_format="",
    reasoning_format="",
    adapters=(),
    eos_ids=(CONFIG["eos_token_id"],),
    num_blocks=0,
    block_size=0,
    max_num_seqs=0,
    max_num_batched_tokens=0,
    max_num_waiting=None,
    created=0,
)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}}'
BAD = SamplingParams(bad_words=[f"word{number:02}" for number in range(64)])
CASES = {
    "100 characters": Generate(prompt=WORDS[:100]),
    "1,000 characters": Generate(prompt=WORDS[:1000]),
    "8,000 characters": Generate(prompt=WORDS[:8000]),
    "80,000 characters": Generate(prompt=WORDS[:80000]),
    "100,000 token ids": Generate(prompt=[5] * 100_000),
    "64 bad words": Generate(prompt="a", params=BAD),
    "a new JSON schema": Generate(prompt="a", grammar=Grammar("json_schema", SCHEMA)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory) / "tokenizer.json")
        processor = Processor(Tokenizer.open(directory), None, CARD, is_trusted=False)
        processor.warm()
        setup = msgspec.msgpack.encode(child.ProcessorSetup(directory, CARD, {}))
        server = ForkServer(child.MODULE, lambda: setup)
        pool = Pool(server, child.PREPARE, PoolLimits())
        rows = [_measure(name, one, processor, pool, rounds) for name, one in CASES.items()]
        pool.close()
    columns = ["request", "thread, ms", "child, ms", "is prepared on"]
    print_table(columns, [[str(cell) for cell in row] for row in rows])
    print_json("llm_preparation", **{str(row[0]): row[1:] for row in rows})


def _measure(
    name: str, request: Generate, processor: Processor, pool: Pool, rounds: int
) -> list[object]:
    count = iter(range(1 << 30))

    def fresh() -> Generate:
        """The request, with a grammar that nobody has compiled."""
        if request.grammar is None:
            return request
        source = request.grammar.source.replace('"a"', f'"a{next(count)}"')
        return msgspec.structs.replace(request, grammar=Grammar("json_schema", source))

    def here() -> None:
        processor.prepare(fresh())

    def there() -> None:
        asked = fresh()
        done, answers = threading.Event(), []

        def on_done(answer: bytes | JobFailure) -> None:
            answers.append(answer)
            done.set()

        pool.submit(encode_job(asked), on_done)
        done.wait()
        assert isinstance(answers[0], bytes), answers
        read = decode_result(answers[0])
        processor.complete(asked, read)  # type: ignore[arg-type]

    place = "thread" if is_small(request) and request.grammar is None else "child"
    return [name, _median(here, rounds), _median(there, rounds), place]


def _median(call: Callable[[], None], rounds: int) -> float:
    call()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds) * 1000, 2)


if __name__ == "__main__":
    main()
