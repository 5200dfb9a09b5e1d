"""Downloads over real sockets: ranges, redirects, versions, hashes, statuses, several processes."""

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mindspore_serving.errors import NotFound, ServingError, StartError
from mindspore_serving.hub import download, http
from mindspore_serving.hub.download import FileDownload, fetch_all
from mindspore_serving.hub.http import HttpClient, retry_after
from mindspore_serving.hub.source import Unreachable
from tests.hub.servers import FileServer, Reply, Request
from tests.waiting import PATIENCE

BODY = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()


def fetch(server: FileServer, target: Path, **more: object) -> list[int]:
    """Download /file to `target`; return the increments that were reported."""
    reported: list[int] = []
    client = HttpClient("Bearer secret", advice="set TOKEN")
    opener = client.open_at(f"{server.url}/file", "model.onnx")
    fetch_all([FileDownload("model.onnx", target, opener, **more)], reported.append)  # type: ignore[arg-type]
    return reported


def ranges(server: FileServer) -> list[str]:
    return [request.headers.get("range", "") for request in server.asked("/file")]


def test_a_file_is_downloaded_and_its_progress_adds_up(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY)
    reported = fetch(server, tmp_path / "file", size=len(BODY), sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert sum(reported) == len(BODY)
    assert not list(tmp_path.glob("*.incomplete"))


def test_a_present_file_is_not_asked_for(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    assert sum(fetch(server, tmp_path / "file", size=len(BODY), sha256=SHA256)) == len(BODY)
    assert server.requests == []


def test_a_present_file_of_another_hash_is_replaced(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY)
    (tmp_path / "file").write_bytes(BODY[::-1])
    fetch(server, tmp_path / "file", size=len(BODY), sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_cut_connection_is_resumed_at_its_last_byte(server: FileServer, tmp_path: Path) -> None:
    reply = server.add("/file", BODY, cuts=[1000, 200_000])
    reported = fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == ["", "bytes=1000-", "bytes=201000-"]
    assert server.requests[1].headers["if-range"] == reply.headers["ETag"]
    assert sum(reported) == len(BODY)


def test_a_later_run_resumes_a_partial_file(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY, cuts=[1000] + [0] * download.ATTEMPTS)
    with pytest.raises(
        Unreachable, match="ended the connection before all of model.onnx came; start"
    ):
        fetch(server, tmp_path / "file", size=len(BODY))
    server.requests.clear()
    server.add("/file", BODY)
    fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == ["bytes=1000-"]


def test_a_new_version_is_downloaded_from_its_start(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY, cuts=[1000] + [0] * download.ATTEMPTS)
    with pytest.raises(Unreachable):
        fetch(server, tmp_path / "file")
    server.add("/file", BODY[::-1])
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY[::-1]


def test_a_file_without_version_and_hash_starts_anew(server: FileServer, tmp_path: Path) -> None:
    server.routes["/file"] = Reply(BODY, cuts=[1000])
    fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == ["", ""]


def test_a_server_without_ranges_is_read_again(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY, cuts=[1000], has_ranges=False)
    reported = fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY
    assert sum(reported) == len(BODY)


def test_a_partial_file_that_is_too_long_starts_anew(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY)
    (tmp_path / "file.incomplete").write_bytes(BODY + b"more")
    fetch(server, tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_wrong_hash_removes_the_file_and_says_both(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY[::-1])
    with pytest.raises(StartError, match=f"SHA-256 .*, expected {SHA256}: it is removed"):
        fetch(server, tmp_path / "file", size=len(BODY), sha256=SHA256)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_size_other_than_listed_is_refused_unread(server: FileServer, tmp_path: Path) -> None:
    server.add("/file", BODY)
    with pytest.raises(StartError, match="has 512000 bytes, and its source lists 1000"):
        fetch(server, tmp_path / "file", size=1000)


def test_a_body_over_the_listed_size_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    server.routes["/file"] = Reply(chunked, headers={"Transfer-Encoding": "chunked"})
    with pytest.raises(StartError, match="has more than the 1000 bytes"):
        fetch(server, tmp_path / "file", size=1000)
    assert not (tmp_path / "file.incomplete").exists()


def test_a_body_of_unknown_size_is_downloaded(server: FileServer, tmp_path: Path) -> None:
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    server.routes["/file"] = Reply(chunked, headers={"Transfer-Encoding": "chunked"})
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_huge_announced_size_is_refused_for_the_disk(server: FileServer, tmp_path: Path) -> None:
    server.routes["/file"] = Reply(b"x", announced=1 << 60)
    with pytest.raises(StartError, match="and the download needs 1152921504.61 GB"):
        fetch(server, tmp_path / "file")


def test_credentials_do_not_follow_a_redirect(
    server: FileServer, cdn: FileServer, tmp_path: Path
) -> None:
    cdn.add("/blob", BODY, cuts=[1000])
    server.routes["/file"] = Reply(status=302, headers={"Location": f"{cdn.url}/blob"})
    fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY
    assert [request.headers["authorization"] for request in server.asked("/file")] == [
        "Bearer secret"
    ] * 2
    assert [request.headers.get("range") for request in cdn.requests] == [None, "bytes=1000-"]
    assert all("authorization" not in request.headers for request in cdn.requests)


def test_an_endless_redirect_ends_in_an_error(server: FileServer, tmp_path: Path) -> None:
    server.routes["/file"] = Reply(status=302, headers={"Location": f"{server.url}/file"})
    with pytest.raises(StartError, match="redirects model.onnx over 8 times"):
        fetch(server, tmp_path / "file")


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (401, StartError, r"answers 401 \(no or wrong credentials\) to model.onnx; set TOKEN"),
        (403, StartError, r"answers 403 \(not allowed\) to model.onnx; set TOKEN"),
        (404, NotFound, "has no model.onnx"),
        (418, StartError, "answers 418 to model.onnx"),
    ],
)
def test_a_refusal_is_a_sentence_with_advice(
    server: FileServer, tmp_path: Path, status: int, error: type[ServingError], text: str
) -> None:
    server.routes["/file"] = Reply(status=status)
    with pytest.raises(error, match=f"^127.0.0.1:[0-9]+ {text}$"):
        fetch(server, tmp_path / "file")
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path, status: int) -> None:
    busy = Reply(status=status, headers={"Retry-After": "0"})
    server.routes["/file"] = [busy, busy, Reply(BODY)]
    fetch(server, tmp_path / "file", size=len(BODY))
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_long_retry_after_is_told_and_not_waited(server: FileServer, tmp_path: Path) -> None:
    server.routes["/file"] = Reply(status=429, headers={"Retry-After": "3600"})
    with pytest.raises(Unreachable, match=r"429 \(too many requests\).* again in 3600 seconds"):
        fetch(server, tmp_path / "file")
    assert len(server.requests) == 1


def test_retry_after_is_a_number_a_date_or_nothing() -> None:
    assert retry_after("7") == 7
    assert retry_after("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert retry_after("Fri, 01 Jan 2100 00:00:00 GMT") > 1e9
    assert retry_after("soon") == retry_after("") == 0


def test_a_silent_server_fails_by_the_timeout_of_a_read(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUTS", (5, 0.05))
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    hold = threading.Event()
    server.add("/file", BODY, hold=hold)
    with pytest.raises(Unreachable, match="stopped sending model.onnx: nothing came for 0.05 sec"):
        fetch(server, tmp_path / "file", size=len(BODY))
    hold.set()
    assert (tmp_path / "file.incomplete").stat().st_size >= len(BODY) // 2


def test_an_unreachable_host_is_named_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="^127.0.0.1:1 cannot be reached: Connection refused$"):
        HttpClient().get("http://127.0.0.1:1/", "the list")


def test_a_large_answer_in_place_of_json_is_refused(server: FileServer) -> None:
    server.add("/file", BODY)
    with pytest.raises(StartError, match="sends over 1000 bytes for the list"):
        HttpClient().get(f"{server.url}/file", "the list", limit=1000)
    with pytest.raises(Unreachable, match="answers with what is no JSON"):
        HttpClient().get_json(f"{server.url}/file", "the list")


def test_files_are_downloaded_at_the_same_time(server: FileServer, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def answer(request: Request) -> Reply:
        both.wait(PATIENCE)
        return Reply(request.path.encode())

    server.routes = {"/a": answer, "/b": answer}
    client = HttpClient()
    fetch_all(
        [FileDownload(n, tmp_path / n, client.open_at(f"{server.url}/{n}", n)) for n in "ab"],
        lambda count: None,
    )
    assert [(tmp_path / name).read_text() for name in "ab"] == ["/a", "/b"]


def test_the_first_error_ends_the_other_downloads(server: FileServer, tmp_path: Path) -> None:
    hold = threading.Event()
    server.add("/slow", BODY, hold=hold)
    client = HttpClient()

    def refuse(request: Request) -> Reply:
        threading.Timer(0.05, hold.set).start()
        return Reply(status=404)

    server.routes["/missing"] = refuse
    names = ["slow", "missing"]
    with pytest.raises(NotFound, match="has no missing"):
        fetch_all(
            [FileDownload(n, tmp_path / n, client.open_at(f"{server.url}/{n}", n)) for n in names],
            lambda count: None,
        )
    assert not (tmp_path / "slow").exists()


def test_two_processes_download_a_file_once(server: FileServer, tmp_path: Path) -> None:
    hold = threading.Event()
    server.add("/file", BODY, hold=hold)
    program = (
        "import sys; from pathlib import Path\n"
        "from mindspore_serving.hub.download import FileDownload, fetch_all\n"
        "from mindspore_serving.hub.http import HttpClient\n"
        "opener = HttpClient().open_at(sys.argv[1], 'model.onnx')\n"
        "fetch_all([FileDownload('model.onnx', Path(sys.argv[2]), opener)], lambda count: None)\n"
    )
    command = [sys.executable, "-c", program, f"{server.url}/file", str(tmp_path / "file")]
    with (
        subprocess.Popen(command) as first,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as second,
    ):
        others: list[str] = []
        hold.wait(0.5)  # both have begun, or the second begins later: once in either case
        hold.set()
        others += second.communicate(timeout=PATIENCE)
        assert (first.wait(PATIENCE), second.returncode) == (0, 0), others
    assert (tmp_path / "file").read_bytes() == BODY
    assert len(server.asked("/file")) == 1
