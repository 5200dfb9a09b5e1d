"""Trains the small language model of this example, on two CPU cores in less than 20 minutes.

    apt-get download r-cran-janeaustenr
    pip install torch transformers tokenizers tqdm
    python train.py r-cran-janeaustenr_1.0.0-1_all.deb model

Writes a directory as Hugging Face's libraries do, with a tokenizer and a chat template of its own,
and the held-out text beside it.  The same package, seed and number of threads give the same model.
"""

import argparse
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # on shared cores, waiting threads give way

import torch
from conversations import Conversation, conversations
from novels import read_novels, split
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]  # their ids are 0 to 3
TEMPLATE = (
    "{% for message in messages %}"
    "{% set role = 'system' if message.role == 'developer' else message.role %}"
    "{% if role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the roles are system, user and assistant') }}"
    "{% endif %}"
    "{{ '<|' + role + '|>' + message.content + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCABULARY = 4096
POSITIONS = 1024
STEP_TOKENS = 1024
WINDOW, LONG_WINDOW = 512, POSITIONS
LONG_FROM = 0.85  # from this part of the training on, all positions are learnt
WARMUP = 100
PEAK_RATE, LAST_RATE = 2e-3, 5e-5
Texts = dict[str, list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small language model.")
    parser.add_argument("package", type=Path, help="the .deb, or the directory that it installs")
    parser.add_argument("target", type=Path, help="the model's directory")
    parser.add_argument("--steps", type=int, default=1400, help=f"of {STEP_TOKENS} tokens")
    parser.add_argument("--seed", type=int, default=1813)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    torch.set_num_threads(given.threads)

    cut = {title: split(text) for title, text in read_novels(given.package).items()}
    learnt = {title: parts[0] for title, parts in cut.items()}
    held_out = "\n".join(paragraph for _, rest in cut.values() for paragraph in rest) + "\n"
    given.target.mkdir(parents=True, exist_ok=True)
    (given.target.parent / "held_out.txt").write_text(held_out, "utf-8")

    tokenizer = make_tokenizer(learnt, given.target)
    model = new_model(len(tokenizer))
    train(model, tokenizer, learnt, given.steps, given.seed)
    model.to(torch.bfloat16).save_pretrained(given.target)
    model.float()  # what was saved: the rounded weights
    print(f"perplexity of the held-out text: {perplexity(model, tokenizer, held_out):.2f}")


def new_model(vocab_size: int) -> LlamaForCausalLM:
    """5.0 million parameters; the embeddings are the output matrix as well.

    What a layer adds begins as zero: the embeddings, small at first, are not drowned in it.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def make_tokenizer(novels: Texts, target: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE vocabulary of the novels, written with the chat template to `target`."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(("\n".join(text) for text in novels.values()), trainer)
    inner.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "extra_special_tokens": SPECIAL[1:],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return PreTrainedTokenizerFast.from_pretrained(target)


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    novels: Texts,
    steps: int,
    seed: int,
) -> None:
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    long_from = round(steps * LONG_FROM)
    stream = batches(tokenizer, novels, WINDOW, seed)
    long_stream = batches(tokenizer, novels, LONG_WINDOW, seed + 1000)
    model.train()
    shown = math.log(len(tokenizer))
    with tqdm(range(steps), "train", unit="step") as bar:
        for step in bar:
            batch = next(stream if step < long_from else long_stream)
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            shown += (loss.item() - shown) / min(step + 1, 25)
            bar.set_postfix(loss=f"{shown:.3f}")
    model.eval()


def rate(step: int, steps: int) -> float:
    """The learning rate as a part of its peak: up in a line, down as a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    low = LAST_RATE / PEAK_RATE
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


def batches(
    tokenizer: PreTrainedTokenizerFast, novels: Texts, window: int, seed: int
) -> Iterator[torch.Tensor]:
    """int64 [STEP_TOKENS / window, window], without end.  Each round has all the novels, cut
    elsewhere, and new conversations."""
    order = random.Random(seed)
    texts = [tokenizer("\n".join(text))["input_ids"] + [0] for text in novels.values()]
    prose = torch.tensor([token for text in texts for token in text])
    while True:
        seed += 1
        talk = torch.tensor(talk_ids(tokenizer, list(conversations(novels, 1.0, seed))))
        rows = [
            stream[at : at + window]
            for stream in (prose, talk)
            for at in range(order.randrange(window), len(stream) - window, window)
        ]
        order.shuffle(rows)
        size = STEP_TOKENS // window
        for at in range(0, len(rows) - size + 1, size):
            yield torch.stack(rows[at : at + size])


def talk_ids(tokenizer: PreTrainedTokenizerFast, talks: list[Conversation]) -> list[int]:
    random.Random(len(talks)).shuffle(talks)
    texts = [tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
    return [token for ids in tokenizer(texts)["input_ids"] for token in ids]


def perplexity(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """Of the tokens after the first of each window of 512."""
    ids = torch.tensor(tokenizer(text)["input_ids"])
    losses = []
    with torch.no_grad():
        for row in ids[: len(ids) // WINDOW * WINDOW].view(-1, 1, WINDOW):
            losses.append(model(input_ids=row, labels=row).loss.item())
    return math.exp(sum(losses) / len(losses))


if __name__ == "__main__":
    main()
