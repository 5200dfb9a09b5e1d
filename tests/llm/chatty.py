"""A tiny random Llama with a real tokenizer and chat template: it answers chats, in no language."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.llm import checkpoints

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]  # EOS is 2


def build(directory: Path, name: str = "chatty", *, context: int = 512) -> Path:
    """The model's directory, below `directory`.  Its vocabulary is 512 tokens, bytes among them."""
    sizes = checkpoints.SIZES
    checkpoints.SIZES = {**sizes, "vocab_size": 512, "max_position_embeddings": context}
    try:
        built = checkpoints.build("llama", directory)
    finally:
        checkpoints.SIZES = sizes
    target = built.rename(directory / name)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "bos_token": "<s>", "chat_template": TEMPLATE}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target
