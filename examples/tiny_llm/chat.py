"""Asks the small model, in this process and without a server.

    python examples/tiny_llm/chat.py "What do you know about Elizabeth?"

Needs `pip install 'mindspore-serving[llm]'`.
"""

import sys
from pathlib import Path

from mindspore_serving.llm import LLM, SamplingParams

MODEL = Path(__file__).parent / "model"


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Who are you?"
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=128, seed=1)
    with LLM(MODEL) as llm:
        (answer,) = llm.chat([{"role": "user", "content": question}], params)
    print(answer.outputs[0].text)


if __name__ == "__main__":
    main()
