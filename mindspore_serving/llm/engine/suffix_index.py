"""Index of a text: where its last tokens occurred before, and what followed them there.

A run of `RUN` tokens is looked up in a dictionary, which has its latest position; a chain leads
from each position to the one before it.  Of these positions, those that agree with the text for
longest are continued.  If there are none, and fewer tokens are enough, it is the best of the latest
positions of the last token.  That is the search of a suffix tree, bounded: a token costs two
entries of dictionaries at most, a search looks at a few positions.

    text      A B C X ... A B C Y ... A B C ?      a position is where a run ends, so that
                    ^           ^                  `tokens[position]` is what followed it
    earlier     0 <-'---------<-'    latest["A B C"] is the second
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RUN = 3  # tokens of a run; at least `min_n` and at most `max_n`
MAX_POSITIONS = 16  # of a run, that a search looks at
MAX_SINGLES = 4  # of a token
END = -1  # a token that no text has: it ends a text, and no draft continues beyond it


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a text.

    `match_length` is how many tokens before them agree with the position that they come from.
    `shares` has for each token the share of the positions that continue with it.
    """

    tokens: list[int]
    match_length: int = 0
    shares: list[float] | None = None  # None: all 1.0
    is_forced: bool = False  # by a grammar


NO_DRAFT = Draft([])


def run_length(max_n: int, min_n: int) -> int:
    """Return the number of tokens of a run."""
    return max(min_n, min(RUN, max_n))


class _Chains:
    """Positions of each key, latest first, as chains."""

    __slots__ = ("_earlier", "latest")

    def __init__(self, earlier: list[int], latest: dict[int, int] | None = None) -> None:
        self.latest = latest or {}  # key -> its latest position
        self._earlier = earlier  # position -> the position before it with the same key, or 0

    def copy(self) -> "_Chains":
        return _Chains(self._earlier[:], self.latest.copy())

    def extend(self, keys: Iterable[int], first: int) -> None:
        """Add consecutive positions from `first` on, one for each of `keys`."""
        latest, append = self.latest, self._earlier.append
        for position, key in enumerate(keys, first):
            append(latest.get(key, 0))
            latest[key] = position

    def add(self, key: int, position: int) -> None:
        self._earlier.append(self.latest.get(key, 0))
        self.latest[key] = position

    def of(self, key: int, limit: int) -> list[int]:
        """Return the latest positions of `key`, at most `limit`."""
        position, positions = self.latest.get(key, 0), list[int]()
        while position and len(positions) < limit:
            positions.append(position)
            position = self._earlier[position]
        return positions


class SuffixIndex:
    """A text that grows, with the positions of each run, and of each token if `min_n` is less.

    Runs become known when something follows them: the last one never finds itself.
    """

    __slots__ = ("_max_n", "_min_n", "_run", "_runs", "_singles", "tokens")

    def __init__(self, max_n: int, min_n: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._max_n = max_n
        self._min_n = min_n
        self._run = run_length(max_n, min_n)
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
        """Append tokens."""
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
        """Append one token, as `extend` does."""
        position = len(self.tokens)
        if position >= self._run:
            self._runs.add(self.key(self.tokens), position)
        if position and self._singles is not None:
            self._singles.add(self.tokens[-1], position)
        self.tokens.append(token)

    def key(self, text: Sequence[int]) -> int:
        """Return the key of the end of `text`, the same in every index with the same `min_n`."""
        return hash(tuple(text[-self._run :]))

    def may_know(self, key: int) -> bool:
        """Return whether a text with that key may have positions here."""
        return key in self._runs.latest

    def find(self, text: Sequence[int], known: Iterable[int] = ()) -> tuple[int, list[int]]:
        """Return the number of tokens that agree before the best positions, and these positions.

        The number is at most `max_n`.  The positions come latest first; a match that is shorter
        than a run has only one.  (0, []) if no match has `min_n` tokens.  `known` are positions to
        try as well, such as those of the last match.
        """
        known = [position for position in known if position < len(self.tokens)]
        positions = self._runs.of(self.key(text), MAX_POSITIONS)
        best, matches = self._best(text, {*known, *positions}, self._run)
        if not matches and self._singles is not None and text:
            positions = self._singles.of(text[-1], MAX_SINGLES)
            best, matches = self._best(text, {*known, *positions}, self._min_n)
            del matches[1:]
        return (best, matches) if matches else (0, [])

    def _best(self, text: Sequence[int], positions: set[int], least: int) -> tuple[int, list[int]]:
        """Return the longest agreement of `positions`, at least `least`, and those that have it."""
        best, matches = least, list[int]()
        for position in sorted(positions, reverse=True):
            match_length = self._match_length(text, position)
            if match_length > best:
                best, matches = match_length, []
            if match_length == best:
                matches.append(position)
        return best, matches

    def draft(self, positions: list[int], limit: int) -> tuple[list[int], list[float]]:
        """Return up to `limit` tokens that followed `positions`, and the share that each had.

        Each token is the most frequent one, of equals that of the latest position.  Its share is
        that of the positions that it followed.  The end of the text is followed by the draft
        itself: a repetition goes on.
        """
        tokens, length = self.tokens, len(self.tokens)
        if len(positions) == 1 and positions[0] + limit <= length:
            tail_tokens = tokens[positions[0] : positions[0] + limit]
            if END in tail_tokens:
                del tail_tokens[tail_tokens.index(END) :]
            return tail_tokens, [1.0] * len(tail_tokens)
        drafted, shares = list[int](), list[float]()
        while len(drafted) < limit:
            ahead = len(drafted)
            following = [
                tokens[position + ahead]
                if position + ahead < length
                else drafted[position + ahead - length]
                for position in positions
            ]
            token, count = following[0], len(positions)
            if count > 1:
                [(token, count)] = Counter(following).most_common(1)
            if token == END:
                break
            drafted.append(token)
            shares.append(count / len(positions))
            if count < len(positions):
                pairs = zip(positions, following, strict=True)
                positions = [position for position, next_token in pairs if next_token == token]
        return drafted, shares

    def _match_length(self, text: Sequence[int], position: int) -> int:
        """Return how many tokens before `position` agree with the end of `text`."""
        tokens, count = self.tokens, 0
        limit = min(self._max_n, len(text), position)
        while count < limit and tokens[position - 1 - count] == text[-1 - count]:
            count += 1
        return count
