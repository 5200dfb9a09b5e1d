"""Where the last tokens of a text came before, and what followed them there.

A run of `RUN` tokens finds the places that it was at, latest first, by a chain through them; of
these, the ones that agree with the text for longest are continued.  If there are none and fewer
tokens are enough, the best of the latest places of the last token is.  That is the search of a
suffix tree, bounded: a token costs two entries of dictionaries at most, a search a few places.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RUN = 3  # tokens, or more if fewer are not enough, or as many as are compared
MAX_PLACES = 16  # of a run, that a search looks at
MAX_SINGLES = 4  # of a token
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


def run_of(max_n: int, min_n: int) -> int:
    """The tokens of a run."""
    return max(min_n, min(RUN, max_n))


class _Chains:
    """The places of each key, latest first, by a chain through them."""

    __slots__ = ("_earlier", "latest")

    def __init__(self, earlier: list[int], latest: dict[int, int] | None = None) -> None:
        self.latest = latest or {}  # key -> its latest place
        self._earlier = earlier  # place -> the one before it of the same key, or 0

    def copy(self) -> "_Chains":
        return _Chains(self._earlier[:], self.latest.copy())

    def extend(self, keys: Iterable[int], first: int) -> None:
        """The places of `keys` are `first` and those that follow it."""
        latest, append = self.latest, self._earlier.append
        for place, key in enumerate(keys, first):
            append(latest.get(key, 0))
            latest[key] = place

    def add(self, key: int, place: int) -> None:
        self._earlier.append(self.latest.get(key, 0))
        self.latest[key] = place

    def of(self, key: int, most: int) -> list[int]:
        """At most `most`."""
        place, found = self.latest.get(key, 0), list[int]()
        while place and len(found) < most:
            found.append(place)
            place = self._earlier[place]
        return found


class SuffixIndex:
    """A text that grows, and where each run of its tokens was, and each token if `min_n` is less.

    Runs become known when something follows them: the last one never finds itself.
    """

    __slots__ = ("_max_n", "_min_n", "_run", "_runs", "_singles", "tokens")

    def __init__(self, max_n: int, min_n: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._max_n = max_n
        self._min_n = min_n
        self._run = run_of(max_n, min_n)
        self._runs = _Chains([0] * self._run)
        self._singles = _Chains([0]) if min_n < self._run else None
        self.extend(tokens)

    def copy(self) -> "SuffixIndex":
        other = SuffixIndex(self._max_n, self._min_n)
        other.tokens = self.tokens[:]
        other._runs = self._runs.copy()
        other._singles = self._singles and self._singles.copy()
        return other

    def extend(self, new: Iterable[int]) -> None:
        """Add the tokens that follow."""
        old = len(self.tokens)
        self.tokens += new
        first = max(self._run, old)
        tail = self.tokens[first - self._run : -1]
        runs = zip(*(tail[skipped:] for skipped in range(self._run)), strict=False)
        self._runs.extend(map(hash, runs), first)
        if self._singles is not None:
            first = max(1, old)
            self._singles.extend(self.tokens[first - 1 : -1], first)

    def add(self, token: int) -> None:
        """As `extend` by one token."""
        place = len(self.tokens)
        if place >= self._run:
            self._runs.add(self.key(self.tokens), place)
        if place and self._singles is not None:
            self._singles.add(self.tokens[-1], place)
        self.tokens.append(token)

    def key(self, text: Sequence[int]) -> int:
        """What the end of `text` is found by, in every index with the same `min_n`."""
        return hash(tuple(text[-self._run :]))

    def may_know(self, key: int) -> bool:
        """Whether a text with that key may have places here."""
        return key in self._runs.latest

    def find(self, text: Sequence[int], known: Iterable[int] = ()) -> tuple[int, list[int]]:
        """How many tokens at the end of `text` agree with those before the best places, at most
        `max_n`, and these places, latest first, but one alone of fewer tokens than a run has;
        (0, []) if none has `min_n`.

        `known` are places to try as well, such as those that were right before.
        """
        known = [place for place in known if place < len(self.tokens)]
        places = self._runs.of(self.key(text), MAX_PLACES)
        best, found = self._best(text, {*known, *places}, self._run)
        if not found and self._singles is not None and text:
            places = self._singles.of(text[-1], MAX_SINGLES)
            best, found = self._best(text, {*known, *places}, self._min_n)
            del found[1:]
        return (best, found) if found else (0, [])

    def _best(self, text: Sequence[int], places: set[int], least: int) -> tuple[int, list[int]]:
        """Of `places` those that agree for longest, and for how long; `least` at least."""
        best, found = least, list[int]()
        for place in sorted(places, reverse=True):
            agreed = self._agreed(text, place)
            if agreed > best:
                best, found = agreed, []
            if agreed == best:
                found.append(place)
        return best, found

    def draft(self, places: list[int], most: int) -> tuple[list[int], list[float]]:
        """Up to `most` tokens that followed `places`, each the most frequent one (of equals the
        latest place's), and the share of the places that it followed.

        What follows the end of the text is what was drafted: a repetition goes on.
        """
        tokens, length = self.tokens, len(self.tokens)
        if len(places) == 1 and places[0] + most <= length:
            alone = tokens[places[0] : places[0] + most]
            if END in alone:
                del alone[alone.index(END) :]
            return alone, [1.0] * len(alone)
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
