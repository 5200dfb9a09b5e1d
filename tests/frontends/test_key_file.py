"""API keys from a file: who may read it, its lines, and the limits of a key."""

import pytest

from mindspore_serving.errors import InvalidInputs, Overloaded, StartError
from mindspore_serving.frontends.key_file import read_keys
from mindspore_serving.frontends.keys import ApiKey, Keys

SECRET = "a-key-that-is-long-enough"


@pytest.fixture
def write(tmp_path):
    def make(text, mode=0o600):
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        return path

    return make


def test_a_line_has_a_key_its_name_and_its_limits(write):
    path = write(
        f"# for the team\n\n{SECRET}-1\n{SECRET}-2 Anna max_requests=8 priority=-1\n"
        f"{SECRET}-3 requests_per_minute=60\n"
    )
    assert read_keys(path) == (
        ApiKey(f"{SECRET}-1", "line 3"),
        ApiKey(f"{SECRET}-2", "Anna", max_requests=8, priority=-1),
        ApiKey(f"{SECRET}-3", "line 5", requests_per_minute=60),
    )


def test_a_file_that_every_user_can_read_is_refused(write):
    with pytest.raises(StartError, match="every user can read the API keys in .*chmod o="):
        read_keys(write(SECRET, 0o604))
    assert read_keys(write(SECRET, 0o640))  # a group, as containers have it


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StartError, match="nothing"):
        read_keys(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no API key"),
        ("# nothing", "there is no API key"),
        ("short", "line 1: the API key should have at least 8"),
        (f"{SECRET}\n{SECRET} again", "line 2: the API key is repeated"),
        (f"{SECRET} Anna speed=9", "line 1: a word is not one of max_requests=N"),
        (f"Annabelle {SECRET}==", "line 1: a word is not one of max_requests=N"),
        (f"{SECRET} Anna max_requests=0", "line 1: 'max_requests=0' is not one of"),
        (f"{SECRET} Anna max_requests=many", "line 1: 'max_requests=many' is not one of"),
    ],
)
def test_a_line_that_is_wrong_is_named_without_its_key(write, text, words):
    with pytest.raises(InvalidInputs) as refused:
        read_keys(write(text))
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_key_has_a_limit_of_requests_in_flight():
    keys = Keys([ApiKey(SECRET, "Anna", max_requests=2)])
    tenants = [keys.find(f"Bearer {SECRET}".encode()).admit() for _ in range(2)]
    with pytest.raises(Overloaded, match="the API key 'Anna' has 2 requests in flight"):
        keys.find(f"Bearer {SECRET}".encode()).admit()
    tenants[0].release()
    assert keys.find(f"Bearer {SECRET}".encode()).admit()


def test_a_key_has_a_limit_of_requests_per_minute(monkeypatch):
    now = 100.0
    monkeypatch.setattr("mindspore_serving.frontends.keys.time.monotonic", lambda: now)
    tenant = Keys([ApiKey(SECRET, "Anna", requests_per_minute=2)]).find(f"Bearer {SECRET}".encode())
    tenant.admit()
    tenant.admit()
    with pytest.raises(Overloaded) as refused:
        tenant.admit()
    assert refused.value.retry_after == 30.0
    now += 30.0
    assert tenant.admit()
