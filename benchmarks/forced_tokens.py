"""How many tokens of an answer a grammar forces, and what steps and processor time that saves.

    python -m benchmarks.forced_tokens [MODEL] [--tokens 400]

Answers to a JSON schema with long names of properties, by the engine on openvino, with draft tokens
and without: counts of the engine, and processor seconds of the second of two runs.
"""

import argparse
import json
import time
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.llm import LLM

FIELDS = ("departure_airport", "destination_airport", "number_of_passengers", "is_refundable")
KINDS = ("string", "string", "integer", "boolean")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        field: {"type": kind} | ({"maxLength": 12} if kind == "string" else {})
        for field, kind in zip(FIELDS, KINDS, strict=True)
    },
    "required": list(FIELDS),
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="examples/tiny_llm/model")
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    params = SamplingParams(max_tokens=arguments.tokens, temperature=0.0)
    for limit in (0, None):
        options = {"num_speculative_tokens": limit, "enable_prefix_caching": False}
        with LLM(arguments.model, runtime="openvino", **options) as llm:
            for _ in range(2):
                before, began = llm.stats(), time.process_time()
                llm.generate(["A flight:"], params, False, grammar=grammar)
                seconds, after = time.process_time() - began, llm.stats()
        count = after.num_generated_tokens - before.num_generated_tokens
        steps = after.num_steps - before.num_steps
        forced = after.num_forced_tokens - before.num_forced_tokens
        print(
            f"{'no draft tokens' if limit == 0 else 'draft tokens':16}"
            f"{count:4} tokens, {forced:4} forced, {steps:4} steps, "
            f"{seconds:.3f} s of processor time",
            flush=True,
        )


if __name__ == "__main__":
    main()
