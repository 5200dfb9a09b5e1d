"""Files of keys that change, without a server."""

from pathlib import Path

import pytest

from mindspore_serving.frontends.keys import Keys
from mindspore_serving.server import file_watch
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.renewal import Renewal
from tests.waiting import until

KEY = "key-of-tests-number-"


def write(path: Path, number: int) -> None:
    path.write_text(f"{KEY}{number}\n")
    path.chmod(0o600)


def secrets_of(keys: Keys) -> list[str]:
    return [one.key.secret for one in keys.tenants.values()]


async def test_a_look_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "POLL_SECONDS", 0.001)
    calls = []

    async def tell() -> None:
        calls.append("a front end")
        if len(calls) == 1:
            raise RuntimeError("a fault")

    path = tmp_path / "keys"
    write(path, 1)
    renewal = Renewal(tell)
    options = FrontEndOptions(address="127.0.0.1:1", key_file=str(path))
    keys = renewal.keys(options)
    try:
        for number in (2, 3):
            write(path, number)
            expected = [f"{KEY}{number}"], number - 1
            await until(lambda expected=expected: (secrets_of(keys), len(calls)) == expected)
    finally:
        renewal.cancel()
