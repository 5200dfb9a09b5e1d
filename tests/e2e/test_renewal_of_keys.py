"""API keys that change while a server runs: connections that are open, a real file, no restart."""

import http.client
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.renewed import BODY, Served, note_lines, write_keys
from tests.waiting import PATIENCE, eventually

KEYS = "first-key-of-tests first\nsecond-key-of-tests second max_requests=2\n"


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return note_lines(monkeypatch)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key-of-tests"}


class Clients:
    """Connections that stay open: to HTTP, and to gRPC."""

    def __init__(self, served: Served, num_connections: int) -> None:
        self.https = [
            http.client.HTTPConnection("127.0.0.1", served.http, timeout=PATIENCE)
            for _ in range(num_connections)
        ]
        self.channels = [
            grpc.insecure_channel(
                f"127.0.0.1:{served.grpc}", [("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(num_connections)
        ]

    def accept(self, name: str) -> set[bool]:
        """What they say to the key `name`: of the fast path, of ASGI's, of gRPC's."""
        found = set()
        for one in self.https:
            for path, body in (("/model/toy:double", BODY), ("/servables", None)):
                one.request("POST" if body else "GET", path, body, bearer(name))
                answer = one.getresponse()
                answer.read()
                assert answer.status in (200, 401)
                found.add(answer.status == 200)
        for channel in self.channels:
            predict = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
            call = predict.future(b"", metadata=list(bearer(name).items()), timeout=PATIENCE)
            assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
            found.add(call.code() is grpc.StatusCode.OK)
        return found

    def close(self) -> None:
        for one in (*self.https, *self.channels):
            one.close()


@pytest.mark.parametrize("options", [{}, {"front_ends": 2}], ids=str)
def test_a_key_that_was_removed_is_refused_on_connections_that_are_open(
    stopped: Path, lines: list[str], options: dict[str, Any]
) -> None:
    path = stopped / "keys"
    write_keys(path, KEYS)
    served = Served(stopped, None, api_keys=path, **options)
    clients = Clients(served, 4)
    ok, failed = (("serving_file_reloads_total", str(path), one) for one in ("ok", "failed"))

    def metrics(name: str) -> dict[tuple[str, ...], float]:
        return served.metrics(False, **bearer(name))

    try:
        assert clients.accept("first") == clients.accept("second") == {True}
        assert clients.accept("third") == {False}
        write_keys(path, "third-key-of-tests third\nsecond-key-of-tests second max_requests=1\n")
        eventually(lambda: clients.accept("first") == {False})
        eventually(lambda: clients.accept("third") == {True})
        assert clients.accept("second") == {True}
        eventually(lambda: metrics("third")[ok] == 1)
        for number, (text, mode) in enumerate(
            [("", 0o600), ("short", 0o600), ("first-key-of-tests", 0o604)], 1
        ):
            write_keys(path, text, mode)
            eventually(lambda n=number: metrics("third")[failed] == n)
            assert clients.accept("first") == {False}
            assert clients.accept("third") == {True}
        path.chmod(0o600)
        eventually(lambda: clients.accept("first") == {True})
        assert clients.accept("third") == {False}
    finally:
        clients.close()
    told = [one for one in lines if str(path) in one]
    assert [one.split(":")[0] for one in told] == ["info", "error", "error", "error", "info"]
    assert not any("key-of-tests" in one for one in told)
