"""What the toy runtime answers, computed without a cache."""

PRIME, FACTOR, ADAPTER = 2**31 - 1, 31, 1_000_003


def next_token(tokens: list[int], vocab_size: int, adapter: int = 0) -> int:
    """The likeliest token after `tokens`."""
    total, factor = 0, 1
    for token in tokens:
        total = (total + (token + 1 + adapter * ADAPTER) * factor) % PRIME
        factor = factor * FACTOR % PRIME
    return total % vocab_size


def continuation(prompt: list[int], count: int, vocab_size: int, adapter: int = 0) -> list[int]:
    """The greedy answer of `count` tokens."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size, adapter))
    return tokens[len(prompt) :]
