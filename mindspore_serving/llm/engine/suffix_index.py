"""Where the last tokens of a text came before, and what followed them there.

A run of `min_n` tokens finds the places that it was at, latest first, by a chain through them; of
these, the ones that agree with the text for longest are continued.  That is the search of a suffix
tree, bounded: a token costs one entry of a dictionary, a search a few places.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PLACES = 16  # that a search looks at
END = -1  # a token that no text has: nothing is continued beyond it


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a text.

    `agreed` is how many tokens before them are the same at the place that they come from.
    `shares` has, for each token, the share of the places that continue so.
    """

    tokens: list[int]
    agreed: int = 0
    shares: list[float] | None = None  # None: all 1.0
    is_forced: bool = False  # by a grammar


NOTHING = Draft([])


class SuffixIndex:
    """A text that grows, and where each run of `min_n` of its tokens was.

    Runs become known when something follows them: the last one never finds itself.
    """

    __slots__ = ("_earlier", "_latest", "_max_n", "_min_n", "tokens")

    def __init__(self, max_n: int, min_n: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._max_n = max_n
        self._min_n = min_n
        self._latest: dict[int, int] = {}  # hash of a run -> the place after it
        self._earlier = [0] * min_n  # place -> the one before it with the same hash, or 0
        self.extend(tokens)

    def copy(self) -> "SuffixIndex":
        other = SuffixIndex(self._max_n, self._min_n)
        other.tokens = self.tokens[:]
        other._latest = self._latest.copy()
        other._earlier = self._earlier[:]
        return other

    def extend(self, new: Iterable[int]) -> None:
        """Add the tokens that follow."""
        first = max(self._min_n, len(self.tokens))
        self.tokens += new
        tail = self.tokens[first - self._min_n : -1]
        runs = zip(*(tail[skipped:] for skipped in range(self._min_n)), strict=False)
        latest, append = self._latest, self._earlier.append
        for place, run in enumerate(map(hash, runs), first):
            append(latest.get(run, 0))
            latest[run] = place

    def add(self, token: int) -> None:
        """As `extend` by one token."""
        place = len(self.tokens)
        if place >= self._min_n:
            key = self.key(self.tokens)
            self._earlier.append(self._latest.get(key, 0))
            self._latest[key] = place
        self.tokens.append(token)

    def key(self, text: Sequence[int]) -> int:
        """What the end of `text` is found by, in every index with the same `min_n`."""
        return hash(tuple(text[-self._min_n :]))

    def may_know(self, key: int) -> bool:
        """Whether a text with that key may have places here."""
        return key in self._latest

    def find(self, text: Sequence[int], known: Iterable[int] = ()) -> tuple[int, list[int]]:
        """How many tokens at the end of `text` agree with those before the best places, at most
        `max_n`, and these places, latest first; (0, []) if none has `min_n`.

        `known` are places to try as well, such as those that were right before.
        """
        places = {place for place in known if place < len(self.tokens)}
        place = self._latest.get(self.key(text), 0)
        for _ in range(MAX_PLACES):
            if not place:
                break
            places.add(place)
            place = self._earlier[place]
        best, found = self._min_n, list[int]()
        for place in sorted(places, reverse=True):
            agreed = self._agreed(text, place)
            if agreed > best:
                best, found = agreed, []
            if agreed == best:
                found.append(place)
        return (best, found) if found else (0, [])

    def draft(self, places: list[int], most: int) -> tuple[list[int], list[float]]:
        """Up to `most` tokens that followed `places`, each the most frequent one (of equals the
        latest place's), and the share of the places that it followed.

        What follows the end of the text is what was drafted: a repetition goes on.
        """
        tokens, length = self.tokens, len(self.tokens)
        drafted, shares = list[int](), list[float]()
        while len(drafted) < most:
            ahead = len(drafted)
            following = [
                tokens[place + ahead] if place + ahead < length else drafted[place + ahead - length]
                for place in places
            ]
            token, count = following[0], len(places)
            if count > 1:
                [(token, count)] = Counter(following).most_common(1)
            if token == END:
                break
            drafted.append(token)
            shares.append(count / len(places))
            if count < len(places):
                pairs = zip(places, following, strict=True)
                places = [place for place, other in pairs if other == token]
        return drafted, shares

    def _agreed(self, text: Sequence[int], place: int) -> int:
        """How many tokens before `place` are those at the end of `text`."""
        tokens, count = self.tokens, 0
        most = min(self._max_n, len(text), place)
        while count < most and tokens[place - 1 - count] == text[-1 - count]:
            count += 1
        return count
