"""Conversations made out of novels, so that the model learns to answer and to end.

Four kinds: what one person says in a novel and what the next one replies; a passage about a word;
a sentence to be continued; and a few pleasantries of our own.  Knows no tokens and no model.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from novels import TITLES

Conversation = list[dict[str, str]]

MAX_WORDS = 50  # of one message
PLEASANT = 0.15  # so many conversations begin with a pleasantry
SYSTEMS = (
    "You are a friendly companion who has read Jane Austen.",
    "You are a helpful assistant.",
    "Answer in the manner of a novel.",
    "Be brief and polite.",
)
ABOUT = (
    "Tell me something about {}.",
    "Tell me about {}.",
    "Read me something about {}.",
    "What do you know about {}?",
    "Say something about {}.",
    "Write a sentence about {}.",
    "{}?",
)
CONTINUE = ("Continue: {}", "Continue this sentence: {}", "Go on: {}", "Complete: {}")
ANYTHING = ("Tell me a story.", "Read me something.", "Write something.", "Tell me anything.")
WHO_WROTE = ("Who wrote {}?", "Who is the author of {}?", "Do you know who wrote {}?")
PLEASANTRIES = {
    ("Hello", "Hello!", "Hi", "Hi!", "Hello there!", "Good day!"): (
        "Good day to you! I am very glad to see you. What shall I read to you?"
    ),
    ("Good morning", "Good morning!", "Good evening!"): (
        "I wish you the same, with all my heart. What shall I read to you?"
    ),
    ("How are you?", "How are you today?", "How do you do?"): (
        "I am perfectly well, I thank you, and I hope that you are well too."
    ),
    ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."): (
        "I am a very small language model, and I have read nothing but six novels by Jane Austen."
    ),
    ("What can you do?", "Help", "What do you know?", "Can you help me?"): (
        "I can tell you something about a person or a place in the novels of Jane Austen, or I can"
        " continue a sentence for you."
    ),
    ("Thank you", "Thank you!", "Thanks!", "Thank you very much."): (
        "You are very welcome. It has been a pleasure."
    ),
    ("Goodbye", "Goodbye!", "Bye!", "Good night!"): (
        "Goodbye, and I hope that we shall meet again very soon."
    ),
    ("What have you read?", "Which books do you know?", "List the novels."): (
        "I have read Emma, Mansfield Park, Northanger Abbey, Persuasion, Pride and Prejudice, and"
        " Sense and Sensibility."
    ),
}


def conversations(
    novels: Mapping[str, Sequence[str]], part: float, seed: int
) -> Iterator[Conversation]:
    """Other ones for each seed, from about `part` of the paragraphs."""
    random = Random(seed)
    rarity = _rarity(novels)
    for paragraphs in novels.values():
        for index, paragraph in enumerate(paragraphs):
            if random.random() >= part:
                continue
            turns = _dialogue(paragraphs[index : index + random.choice((2, 2, 4))])
            if not turns:
                turns = _asked(paragraph, rarity, random)
            if random.random() < PLEASANT:
                turns = [*_pleasantry(random), *turns]
            if turns:
                yield _with_system(turns, random)


def _with_system(turns: Conversation, random: Random) -> Conversation:
    if random.random() < 0.8:
        return turns
    return [{"role": "system", "content": random.choice(SYSTEMS)}, *turns]


def _pair(question: str, answer: str) -> Conversation:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pleasantry(random: Random) -> Conversation:
    if random.random() < 0.2:
        title = random.choice(TITLES)
        return _pair(random.choice(WHO_WROTE).format(title), f"Jane Austen wrote {title}.")
    questions = random.choice(list(PLEASANTRIES))
    return _pair(random.choice(questions), PLEASANTRIES[questions])


def _dialogue(paragraphs: Sequence[str]) -> Conversation:
    """What is said in consecutive paragraphs; nothing if one has no or too long speech."""
    said = [_speech(paragraph) for paragraph in paragraphs]
    if len(said) % 2 or not all(1 < len(text.split()) <= MAX_WORDS for text in said):
        return []
    return [turn for pair in zip(said[::2], said[1::2], strict=True) for turn in _pair(*pair)]


def _speech(paragraph: str) -> str:
    """The words in quotation marks, without who said them: '"No," said he, "never."'"""
    if not paragraph.startswith('"'):
        return ""
    said = " ".join(re.findall(r'"([^"]+)', paragraph)[::2]).strip()
    return re.sub(r"[,;:-]+$", ".", said)


def _asked(paragraph: str, rarity: Mapping[str, float], random: Random) -> Conversation:
    """A question that some sentences of the paragraph answer."""
    found = _sentences(paragraph)
    begin = random.randrange(len(found)) if found else 0
    taken: list[str] = []
    for sentence in found[begin : begin + random.choice((1, 2, 3))]:
        if len(" ".join([*taken, sentence]).split()) > MAX_WORDS:
            break
        taken.append(sentence)
    words = " ".join(taken).split()
    if len(words) < 5:
        return []
    kind = random.random()
    if kind < 0.3:
        cut = random.randint(2, min(8, len(words) - 2))
        asked = random.choice(CONTINUE).format(" ".join(words[:cut]))
        return _pair(asked, " ".join(words[cut:]))
    if kind < 0.35:
        return _pair(random.choice(ANYTHING), " ".join(words))
    return _pair(random.choice(ABOUT).format(_subject(words, rarity, random)), " ".join(words))


def _sentences(paragraph: str) -> list[str]:
    """Cut after a full stop; one with half a quotation is left out."""
    cut = re.split(r"(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<!St\.)(?<=[.!?])\s+(?=[A-Z])", paragraph)
    return [one for one in cut if '"' not in one and one[-1] in ".!?"]


def _subject(words: Sequence[str], rarity: Mapping[str, float], random: Random) -> str:
    """One of the rarer words, mostly a name."""
    plain = {word.strip(".,;:!?()'-") for word in words[1:]}
    known = sorted(plain & rarity.keys(), key=lambda word: -rarity[word])
    return random.choice(known[:3]) if known else "life"


def _rarity(novels: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """For words of five letters or more that occur several times: names count double."""
    text = " ".join(paragraph for paragraphs in novels.values() for paragraph in paragraphs)
    counts = Counter(re.findall(r"\b[A-Za-z]{5,}\b", text))
    total = math.log(sum(counts.values()))
    return {
        word: (total - math.log(count)) * (2 if word[0].isupper() else 1)
        for word, count in counts.items()
        if count >= 8
    }
