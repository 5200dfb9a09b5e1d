"""One hundred short prompts whose answers are judged by rules, for `sampling_defaults`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LIST_LINE = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s*\S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, and the rule for its answer.

    The answer is on topic if it contains one of `words` (or `count` of them), in lower case and
    bounded by no letter or digit.  With `is_list` it has at least as many lines that begin as those
    of a list, or commas between entries.  With `is_first` the first word is one of `words`.
    """

    kind: str
    text: str
    words: tuple[str, ...]
    count: int = 1
    is_list: bool = False
    is_first: bool = False

    def accepts(self, answer: str) -> bool:
        text = answer.strip().lower()
        if self.is_first:
            first = re.match(r"\W*(\w+)", text)
            return bool(first) and first[1] in self.words  # type: ignore[index]
        found = sum(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
                    for word in self.words)  # fmt: skip
        if self.is_list and len(_LIST_LINE.findall(text)) < self.count > text.count(",") + 1:
            return False
        return found >= self.count


def _rows(kind: str, form: str, table: str, **options: bool) -> Iterator[Prompt]:
    """Iterate over the prompts of a table: "subject: word|word; subject: word"."""
    for row in table.split(";"):
        subject, _, words = row.strip().partition(": ")
        yield Prompt(kind, form.format(subject), tuple(words.split("|")), **options)  # type: ignore[arg-type]


_FRUITS = ("apple", "banana", "orange", "grape", "strawberry", "mango", "pear", "cherry", "kiwi",
           "pineapple", "blueberry", "peach", "lemon", "plum", "apples", "bananas", "oranges",
           "grapes", "strawberries", "mangoes", "mangos", "pears", "cherries", "blueberries",
           "peaches", "lemons", "plums", "raspberries", "watermelon", "avocado")  # fmt: skip
_COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink",
            "gray", "grey", "indigo", "violet")  # fmt: skip
_ANIMALS = ("dog", "cat", "horse", "cow", "lion", "tiger", "elephant", "bird", "fish", "dogs",
            "cats", "lions", "tigers", "elephants", "bear", "monkey", "giraffe", "rabbit", "sheep",
            "pig", "goat", "wolf", "fox", "deer", "birds", "bears", "cows", "pigs")  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september",
           "october", "november", "december")  # fmt: skip
_SPORTS = ("football", "soccer", "basketball", "tennis", "baseball", "swimming", "hockey", "golf",
           "volleyball", "rugby", "cricket", "running", "cycling", "boxing", "skiing")  # fmt: skip
_PLANETS = ("mercury", "venus", "earth", "mars", "jupiter", "saturn", "uranus", "neptune")
_CONTINENTS = ("africa", "asia", "europe", "america", "north america", "south america", "australia",
               "antarctica", "oceania")  # fmt: skip
_VEGETABLES = ("carrot", "carrots", "potato", "potatoes", "tomato", "tomatoes", "onion", "onions",
               "broccoli", "spinach", "cabbage", "lettuce", "peppers", "bell peppers", "cucumber",
               "cucumbers", "kale", "peas", "corn", "garlic", "celery", "zucchini", "cauliflower",
               "sweet potatoes", "eggplant", "beans", "green beans")  # fmt: skip
_NUMBERS = tuple(str(number) for number in range(1, 6))

_LISTS = [
    Prompt("list", f"List {text}.", words, count, is_list=True)
    for text, words, count in (
        ("three fruits", _FRUITS, 3),
        ("three colours", _COLOURS, 3),
        ("three animals", _ANIMALS, 3),
        ("the days of the week", _DAYS, 7),
        ("the months of the year", _MONTHS, 12),
        ("three sports", _SPORTS, 3),
        ("three planets", _PLANETS, 3),
        ("three continents", _CONTINENTS, 3),
        ("three vegetables", _VEGETABLES, 3),
        ("the numbers from 1 to 5", _NUMBERS, 5),
    )
]

PROMPTS: tuple[Prompt, ...] = (
    *_rows(
        "capital", "What is the capital of {}?",
        "France: paris; Germany: berlin; Italy: rome; Spain: madrid; Japan: tokyo; China: beijing; "
        "Russia: moscow; Egypt: cairo; England: london; Greece: athens",
    ),
    *_rows(
        "arithmetic", "What is {}? Answer with the number.",
        "1 + 1: 2|two; 2 + 3: 5|five; 7 + 5: 12|twelve; 10 - 4: 6|six; 3 times 3: 9|nine; "
        "2 times 6: 12|twelve; 20 divided by 2: 10|ten; 9 - 9: 0|zero; 50 + 50: 100; 8 + 8: 16",
    ),
    *_rows(
        "colour", "What colour is {}?",
        "the sky on a clear day: blue; grass: green; a ripe banana: yellow; snow: white; "
        "blood: red; coal: black; a ripe tomato: red; a carrot: orange; milk: white; "
        "a lemon: yellow",
    ),
    *_rows(
        "yes or no", "{}? Answer yes or no.",
        "Is the sun hot: yes; Is ice cold: yes; Can fish fly to the moon: no; Is water wet: yes; "
        "Is a cat an animal: yes; Is Paris in France: yes; Do humans need air: yes; "
        "Is a stone alive: no; Is ten larger than two: yes; Can a car eat an apple: no",
        is_first=True,
    ),
    *_LISTS,
    *_rows(
        "opposite", "What is the opposite of {}?",
        "hot: cold; big: small|little; up: down; day: night; happy: sad|unhappy; "
        "fast: slow; light: dark|darkness|heavy; left: right; good: bad|evil; open: closed|close",
    ),
    *_rows(
        "sound", "What sound does {} make?",
        "a cow: moo|mooing|moos|moo-moo; a dog: bark|woof|barking|barks|woofs; "
        "a cat: meow|meows|meowing|purr; a duck: quack|quacking|quacks; "
        "a sheep: baa|bleat|bleating|bleats; a lion: roar|roaring|roars; "
        "a snake: hiss|hissing|hisses; a bee: buzz|buzzing|buzzes; "
        "a pig: oink|oinking|oinks|squeal|grunt; a clock: tick|ticking|tick-tock|ticks",
    ),
    *_rows(
        "language", "Which language is spoken in {}?",
        "France: french; Germany: german; Spain: spanish; Italy: italian; Japan: japanese; "
        "Russia: russian; Portugal: portuguese; England: english; Greece: greek; "
        "China: chinese|mandarin",
    ),
    *_rows(
        "use", "What is {} used for?",
        "a knife: cut|cutting|slicing|chopping; a pen: write|writing; a bed: sleep|sleeping|rest; "
        "an umbrella: rain|sun; a key: lock|unlock|open|locks|unlocking|opening; "
        "a clock: time; a phone: call|calls|communication|communicate|calling; "
        "a book: read|reading|knowledge|information; "
        "soap: clean|cleaning|wash|washing|cleanse; "
        "a fridge: food|cold|cool|storing",
    ),
    *_rows(
        "sentence", "Write two sentences about {}.",
        "the sea: sea|ocean|water|waves; a dog: dog|dogs|canine; the winter: winter|snow|cold; "
        "a garden: garden|flowers|plants; music: music|song|songs; the moon: moon|lunar; "
        "bread: bread|loaf|dough; a train: train|trains|railway; a teacher: teacher|teachers; "
        "rain: rain|raindrops|rainfall",
    ),
)  # fmt: skip
"""Ten of each kind."""
