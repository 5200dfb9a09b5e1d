"""Which worker is thought to have the beginning of a prompt."""

import pytest

from mindspore_serving.core import prefixes
from mindspore_serving.core.prefixes import CHUNK, MAX_CHUNKS, PrefixMap, hashes

SYSTEM = "You answer in verse. " * 100


def num_common(first, second):
    pairs = zip(hashes(first), hashes(second), strict=False)
    return sum(one == other for one, other in pairs)


def test_a_text_has_a_hash_for_each_full_piece():
    assert len(hashes(["x" * (CHUNK - 1)])) == 0
    assert len(hashes(["x" * CHUNK])) == 1
    assert len(hashes(["x" * (3 * CHUNK + 1)])) == 3


def test_short_texts_make_a_piece_together():
    assert len(hashes(["x" * (CHUNK // 2)] * 4)) == 2


def test_no_more_than_the_first_pieces_are_read():
    def texts():
        yield "x" * (CHUNK * MAX_CHUNKS)
        raise AssertionError("this was read")

    assert len(hashes(texts())) == MAX_CHUNKS


@pytest.mark.parametrize("same", ["0123456789" * CHUNK, list(range(CHUNK))], ids=["text", "ids"])
def test_two_prompts_have_the_hashes_of_their_common_beginning(same):
    more = same[: len(same) // 2]
    assert num_common([same, more], [same, more[::-1]]) == len(hashes([same])) > 3
    assert len(hashes([same, more])) > len(hashes([same]))


def test_two_prompts_that_begin_otherwise_have_nothing_in_common():
    assert num_common(["a", SYSTEM], ["b", SYSTEM]) == 0


def test_the_workers_with_the_longest_beginning_are_found():
    known = PrefixMap()
    turns = [SYSTEM, "a" * CHUNK, "b" * CHUNK]
    known.add(hashes(turns[:1]), "first")
    known.add(hashes(turns[:2]), "second")
    assert known.find(hashes(turns[:1]), ["first", "second"]) == {"first", "second"}
    assert known.find(hashes(turns), ["first", "second"]) == {"second"}
    assert known.find(hashes(turns), ["first"]) == {"first"}


def test_a_beginning_of_less_than_half_is_not_worth_a_choice():
    known = PrefixMap()
    known.add(hashes(["a" * 2 * CHUNK]), "first")
    assert known.find(hashes(["a" * 2 * CHUNK, "b" * 2 * CHUNK]), ["first"]) == {"first"}
    assert known.find(hashes(["a" * 2 * CHUNK, "b" * 3 * CHUNK]), ["first"]) == set()


def test_a_worker_that_is_gone_has_nothing():
    known = PrefixMap()
    known.add(hashes([SYSTEM]), "first")
    known.remove("first")
    assert known.find(hashes([SYSTEM]), ["first"]) == set()
    assert known._holders == {}


def test_the_prompts_that_were_used_last_are_remembered(monkeypatch):
    monkeypatch.setattr(prefixes, "MAX_ENTRIES", 4)
    known = PrefixMap()
    known.add([1, 2], "first")
    known.add([3, 4], "first")
    known.add([1, 2], "second")
    known.add([5, 6], "first")
    assert known.find([3, 4], ["first"]) == set()
    assert known.find([1, 2], ["first", "second"]) == {"first", "second"}
