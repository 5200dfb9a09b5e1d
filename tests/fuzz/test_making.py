"""The fuzzer's requests: the same for the same seed, and such as a server must bear."""

from pathlib import Path

import pytest

from tests.fuzz.case import HTTP, PROTOCOLS, Case, parse, read, seeds
from tests.fuzz.http_reading import requests_in
from tests.fuzz.making import MOST, Maker


def test_a_number_and_a_seed_always_make_the_same_case() -> None:
    first, again, other = Maker(1), Maker(1), Maker(2)
    numbers = range(300)
    assert [first.make(n) for n in numbers] == [again.make(n) for n in reversed(numbers)][::-1]
    assert [first.make(n) for n in numbers] != [other.make(n) for n in numbers]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cases_differ_from_their_seeds_and_from_each_other(protocol: str) -> None:
    made = [Maker(1, [protocol]).make(number) for number in range(300)]
    assert len({case.data for case in made}) > 200
    originals = {case.data for case in seeds(protocol)}
    assert sum(case.data not in originals for case in made) > 200
    assert all(case.protocol == protocol and len(case.data) <= MOST for case in made)


def test_requests_of_json_protocols_are_mostly_whole_for_another_library() -> None:
    made = [Maker(1, ["openai", "tgi"]).make(number) for number in range(300)]
    assert sum(requests_in(case.data).is_whole for case in made) > 270


def test_a_case_is_written_to_a_file_and_read_again(tmp_path: Path) -> None:
    case = Case("grpc", "PredictStream", b"\x00\xff\r\n", "a-name")
    assert read(case.write(tmp_path, case.origin)) == case


def test_a_request_keeps_its_parts() -> None:
    data = next(case.data for case in seeds("tgi") if case.channel == HTTP)
    assert parse(data).to_bytes() == data
