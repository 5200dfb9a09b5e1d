"""What a model that generates reads to judge a document: the words that Qwen3-Reranker was trained
with, after which it writes "yes" or "no".
"""

from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class RankingPrompt:
    """Writes prompts of at most `most` tokens."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(BEFORE, add_special=False)
        self._behind = tokenizer.encode(BEHIND, add_special=False)
        self._room = most - len(self._before) - len(self._behind)

    def read(self, query: str, document: str, instruction: str, side: str) -> list[int]:
        """The prompt's tokens; if it is too long and there is a `side`, query and document are cut
        there."""
        words = (
            f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        )
        ids = self._tokenizer.encode(words, add_special=False)
        if side and 0 < self._room < len(ids):
            ids = ids[: self._room] if side == "right" else ids[-self._room :]
        return [*self._before, *ids, *self._behind]
