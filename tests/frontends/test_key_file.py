"""API keys from a file: who may read it, its lines, and the limits of a key."""

import hashlib
from pathlib import Path

import pytest

from mindspore_serving.errors import (
    Forbidden,
    InvalidInputs,
    Overloaded,
    StartError,
    Unauthorized,
)
from mindspore_serving.frontends.key_file import read_keys
from mindspore_serving.frontends.keys import ApiKey, Keys, TenantTable
from mindspore_serving.frontends.tenants.limits import Limits

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
        ApiKey(f"{SECRET}-2", "Anna", Limits(max_requests=8), priority=-1),
        ApiKey(f"{SECRET}-3", "line 5", Limits(requests_per_minute=60)),
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


BEARER = f"Bearer {SECRET}".encode()
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
YAML = f"""
keys:
  - name: anna
    key: {SECRET}-1
    max_requests: 8
    requests_per_minute: 60
    tokens_per_minute: 1000
    tokens_per_day: 100_000
    models: [small, big]
    priority: -1
    operator: true
  - {{name: bert, sha256: {DIGEST}}}
weights: {{big: 2.5}}
"""


def test_a_key_can_be_a_digest(write):
    (key,) = read_keys(write(f"sha256:{DIGEST} Anna tokens_per_day=9"))
    assert (key.name, key.limits.tokens_per_day) == ("Anna", 9)
    tenant = Keys([key]).find(BEARER)
    assert tenant.owner == ApiKey(SECRET).owner
    with pytest.raises(Unauthorized):
        Keys([key]).find(f"Bearer sha256:{DIGEST}".encode())


def test_a_yaml_file_has_limits_models_and_weights(tmp_path):
    anna, bert = read_keys(written(tmp_path, YAML))
    assert anna.limits == Limits(8, 60, 1000, 100_000)
    assert (anna.models, anna.priority, anna.is_operator) == (("small", "big"), -1, True)
    assert (anna.weight_of("big"), anna.weight_of("small")) == (2.5, None)
    assert (bert.limits, bert.is_operator, bert.secret) == (Limits(), False, "")
    assert Keys([anna, bert]).find(BEARER).name == "bert"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_requests: 8", "max_requests: 0", "Expected `int` >= 1 - at `$.keys[0].max_requests`"),
        ("priority: -1", "speed: 1", "unknown field a name - at `$.keys[0]`"),
        ("name: anna", "priority: 1", "line 10: a name is there twice"),
        (f"{SECRET}-1", "short", "keys[0]: the API key should have at least 8"),
        (f"{SECRET}-1", SECRET, "keys[1]: the API key is repeated"),
        (f"sha256: {DIGEST}", "sha256: abc", "keys[1]: the digest of the API key should have 64"),
        ("priority: -1", f"{SECRET}: 1", "unknown field a name - at `$.keys[0]`"),
        (", sha256", f", key: {SECRET}-3, sha256", "keys[1]: expected either key or sha256"),
        (f"key: {SECRET}-1", f"key: [{SECRET}-1]", "Expected `str`, got `array`"),
        (f"key: {SECRET}-1", f"key: {SECRET}-1: [", "line 4: mapping"),
        ("big: 2.5", "big: -1.0", "Expected `float` >= 0"),
    ],
)
def test_a_wrong_yaml_file_is_named_without_its_keys(tmp_path, old, new, words):
    with pytest.raises(InvalidInputs) as refused:
        read_keys(written(tmp_path, YAML.replace(old, new)))
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_example_of_the_documentation_is_a_file_of_keys(tmp_path):
    page = Path("docs/tenants.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    first, second = read_keys(written(tmp_path, example))
    assert (first.name, first.weight_of("big"), second.is_operator) == ("team-a", 5, True)


def written(directory, text):
    path = directory / "keys.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_listeners_count_the_requests_of_a_key_together():
    tenants = TenantTable()
    key = ApiKey(SECRET, "Anna", Limits(max_requests=1))
    first, second = Keys([key], tenants), Keys([key], tenants)
    first.find(BEARER).admit()
    with pytest.raises(Overloaded, match="the API key 'Anna' has 1 request in flight"):
        second.find(BEARER).admit()


def test_requests_in_flight_count_after_the_limits_of_a_key_changed():
    keys = Keys([ApiKey(SECRET, "Anna", Limits(max_requests=2))])
    keys.find(BEARER).admit()
    keys.replace([ApiKey(SECRET, "Anna", Limits(max_requests=1))])
    with pytest.raises(Overloaded):
        keys.find(BEARER).admit()


def test_a_key_may_use_its_models_alone():
    tenant = Keys([ApiKey(SECRET, "Anna", models=("small",))]).find(BEARER)
    tenant.check_model("small")
    with pytest.raises(Forbidden, match="'Anna' may not use 'big'; it may use small"):
        tenant.check_model("big")
