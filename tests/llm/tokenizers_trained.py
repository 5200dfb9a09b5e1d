"""Small tokenizers of each kind that models use, trained or spelled out here."""

import json
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from mindspore_serving.llm.tokenization import tokenizer as serving

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Don't panic, it isn't the end of the world! Is it?",
    "Żółta łódź, größe Straße, café naïve",
    "你好，世界。今天天气很好。",
    "emoji: 😀 👍🏽 👨‍👩‍👧 and 🇵🇱 flags",
    "  spaces   and\ttabs\nand lines\n\n",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool 你>", normalized=False)])
    return tokenizer


def llama() -> Tokenizer:
    """BPE with byte fallback and SentencePiece's spaces, as Llama 2 and Mistral have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=450,
        special_tokens=["<unk>", *SPECIAL, *BYTES],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return _with_plain_bytes(tokenizer)


def _with_plain_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer can only take the byte tokens as special ones; in models they are not."""
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = [
        token for token in config["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return Tokenizer.from_str(json.dumps(config))


def gemma() -> Tokenizer:
    """The same without a first space."""
    tokenizer = llama()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece's unigram model with byte fallback."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator([text for text in TEXTS if text.isascii()], trainer)
    vocab = [tuple(entry) for entry in json.loads(trained.to_str())["model"]["vocab"]]
    vocab += [(token, -20.0) for token in BYTES]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace(prepend_scheme: str = "always") -> Tokenizer:
    """BPE with Metaspace alone, as T5 and XLNet have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", *SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def word_piece(cleanup: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def word_ends() -> Tokenizer:
    """BPE whose words end with </w>, as the first GPT had it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", *SPECIAL],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def words() -> Tokenizer:
    """Whole words, and no decoder at all."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS = {
    "byte_level": byte_level,
    "llama": llama,
    "gemma": gemma,
    "unigram": unigram,
    "metaspace": metaspace,
    "metaspace_never": lambda: metaspace("never"),
    "word_piece": word_piece,
    "word_piece_as_is": lambda: word_piece(cleanup=False),
    "word_ends": word_ends,
    "words": words,
}


@cache
def trained(kind: str) -> Tokenizer:
    return KINDS[kind]()


@cache
def opened(kind: str) -> serving.Tokenizer:
    return serving.Tokenizer(trained(kind))
