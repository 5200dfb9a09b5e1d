"""Repositories of Hugging Face over real sockets: what is sent, kept, resumed and refused."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import file_download, hf_hub_download

from mindspore_serving.errors import NotFound, ServingError, StartError
from mindspore_serving.hub import resolve as resolving
from mindspore_serving.hub import source
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.resolve import name_of, resolve
from mindspore_serving.hub.source import NotInstalled, Unreachable
from mindspore_serving.hub.sources import hugging_face
from mindspore_serving.hub.sources.hugging_face import HuggingFace
from tests.hub.hugging_face_server import COMMIT, Hub, Repository

WEIGHTS = bytes(range(256)) * 40
FILES = {
    "README.md": b"# Tiny",
    "config.json": b'{"architectures": ["X"]}',
    "tokenizer.json": b"{}",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "model.safetensors": WEIGHTS,
}
NEEDED = {"README.md", "config.json", "tokenizer.json", "model.safetensors"}


@pytest.fixture(autouse=True)
def tiny(hub: Hub) -> Repository:
    hub.repositories["org/tiny"] = Repository(dict(FILES))
    return hub.repositories["org/tiny"]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has resolved, as a new process would have."""
    monkeypatch.setattr(resolving, "_paths", {})


def test_only_the_needed_files_are_downloaded(hub: Hub, tmp_path: Path) -> None:
    path = Path(resolve("org/tiny"))
    assert path == tmp_path / "cache/models--org--tiny/snapshots" / COMMIT
    assert {each.name for each in path.iterdir()} == NEEDED
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert not hub.gets(".py")
    assert not hub.gets("pytorch_model.bin")


def test_the_revision_is_pinned_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    resolve("hf://org/tiny")
    assert (
        f"hf://org/tiny at {COMMIT}: 4 files, 10.3 KB, licence apache-2.0\n"
        in capsys.readouterr().err
    )


def test_a_process_resolves_a_name_once(hub: Hub) -> None:
    path = resolve("org/tiny")
    hub.log.clear()
    assert resolve("org/tiny") == path
    assert hub.log == []
    assert name_of(path) == "tiny"
    assert name_of("/elsewhere") == ""


def test_the_cache_is_shared_with_the_library(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("org/tiny")
    hub.log.clear()
    file = hf_hub_download(
        "org/tiny", "config.json", local_files_only=True, cache_dir=Path(path).parents[2]
    )
    assert Path(file) == Path(path) / "config.json"
    forget(monkeypatch)
    assert resolve("org/tiny") == path
    assert hub.log == ["GET /api/models/org/tiny?blobs=true"]


def test_a_pinned_model_needs_the_hub_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve(f"org/tiny@{COMMIT}")
    hub.log.clear()
    forget(monkeypatch)
    assert resolve(f"org/tiny@{COMMIT}") == path
    assert hub.log == []


def test_offline_finds_earlier_downloads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("org/tiny")
    hub.log.clear()
    forget(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("hf://org/tiny@main") == path
    assert resolve(f"hf://org/tiny@{COMMIT}") == path
    with pytest.raises(NotFound, match="hf://org/tinny is not downloaded, and.*did you mean"):
        resolve("hf://org/tinny")
    assert hub.log == []


def test_offline_finds_a_model_whose_branch_another_program_moved(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(resolve("org/tiny"))
    (path.parents[1] / "refs/main").write_text("f" * 40)
    (path.parent / ("f" * 40)).mkdir()
    (path.parent / ("f" * 40) / "config.json").write_text("{}")
    forget(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("org/tiny") == str(path)
    with pytest.raises(NotFound):
        resolve("org/tiny@main")


def test_a_hub_that_is_away_is_replaced_by_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = resolve("org/tiny")
    forget(monkeypatch)
    hub.statuses.append(503)
    assert resolve("org/tiny") == path
    assert (
        "answered 503 for org/tiny: try again later; using the download of"
        in capsys.readouterr().err
    )


def test_a_quantisation_of_gguf_is_downloaded_alone(hub: Hub) -> None:
    hub.repositories["org/g"] = Repository({f"g-{q}.gguf": q.encode() for q in ("Q4_K_M", "Q8_0")})
    assert Path(resolve("org/g")).name == "g-Q4_K_M.gguf"
    assert Path(resolve("org/g:Q8_0")).read_bytes() == b"Q8_0"
    assert name_of(resolve("org/g:Q8_0")) == "g"


def test_a_cut_download_is_continued(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
    monkeypatch.setattr(file_download.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts.extend([3000, 4000])
    path = Path(resolve("org/tiny"))
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert [line.split(" ", 2)[2:] for line in hub.log if "bytes=" in line] == [
        ["bytes=3000-"],
        ["bytes=7000-"],
    ]


def test_a_later_run_continues_a_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
    monkeypatch.setattr(file_download.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts.extend([3000, *[0] * 5])  # more than the library's retries
    with pytest.raises(Unreachable, match="of org/tiny was not downloaded completely.*try again"):
        resolve("org/tiny")
    assert HuggingFace().find_cached(Reference("hf", "org/tiny")) is None
    hub.log.clear()
    free = SimpleNamespace(free=len(WEIGHTS) - 3000)
    monkeypatch.setattr(source.shutil, "disk_usage", lambda _: free)
    path = Path(resolve("org/tiny"))
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert [line for line in hub.log if "bytes=3000-" in line]
    assert not hub.gets("config.json")


def test_a_wrong_hash_is_refused_and_removed(hub: Hub, tmp_path: Path) -> None:
    digest = hub.repositories["org/tiny"].sibling("model.safetensors")["lfs"]["sha256"]
    hub.wrong.add(digest)
    with pytest.raises(StartError, match=f"SHA-256 .*, expected {digest}: it is removed"):
        resolve("org/tiny")
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    hub.wrong.clear()
    assert (Path(resolve("org/tiny")) / "model.safetensors").read_bytes() == WEIGHTS


def test_the_token_is_sent_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    hub.repositories["org/tiny"].is_gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("org/tiny")
    assert set(hub.tokens) == {("hub", "Bearer hf_secret"), ("cdn", "")}


def test_a_disk_without_room_is_found_before_the_download(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**4))
    with pytest.raises(StartError, match="has 0.00 GB free, and the download needs 0.00 GB"):
        resolve("org/tiny")
    assert not hub.gets("/resolve/")


def test_the_progress_is_the_size_of_the_files(hub: Hub) -> None:
    reference = Reference("hf", "org/tiny")
    hf = HuggingFace()
    listing = hf.list_files(reference)
    files = [file for file in listing.files if file.path in NEEDED]
    assert listing.licence == "apache-2.0"
    for _ in range(2):  # the second time all are there
        counts: list[int] = []
        hf.fetch(reference, listing, files, counts.append)
        assert sum(counts) == sum(file.size for file in files)


def test_the_cache_is_listed_and_removed(hub: Hub) -> None:
    assert HuggingFace().list_cached() == []
    path = resolve("org/tiny")
    (model,) = HuggingFace().list_cached()
    assert (model.reference, model.revision) == (Reference("hf", "org/tiny", "main"), COMMIT)
    assert model.path == Path(path)
    assert model.size > len(WEIGHTS)
    assert HuggingFace().remove_cached(Reference("hf", "org/tiny", "v9")) == 0
    assert HuggingFace().remove_cached(Reference("hf", "org/tiny")) == model.size
    assert HuggingFace().list_cached() == []


@pytest.mark.parametrize("commit", ["../../../etc", "", "main", "0" * 99])
def test_a_commit_that_is_none_is_refused(hub: Hub, commit: str) -> None:
    hub.repositories["org/tiny"].branches["main"] = commit
    with pytest.raises(StartError, match="expected a commit"):
        resolve("org/tiny")
    assert not hub.gets("/resolve/")


@pytest.mark.parametrize("path", ["../evil.json", "/etc/x.json", "a\x1b[31m.json"])
def test_a_path_out_of_the_directory_is_refused(hub: Hub, path: str) -> None:
    hub.repositories["org/tiny"].files[path] = b"{}"
    with pytest.raises(ServingError, match="which is no relative path"):
        resolve("org/tiny")
    assert not hub.gets("/resolve/")


def test_an_error_stops_the_other_downloads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"a-{part:05}-of-00040.safetensors": bytes([part]) * 9 for part in range(1, 41)}
    hub.repositories["org/parts"] = Repository({"config.json": b"{}", **files})
    hub.wrong.add(
        hub.repositories["org/parts"].sibling("a-00001-of-00040.safetensors")["lfs"]["sha256"]
    )
    with pytest.raises(StartError, match="SHA-256"):
        resolve("org/parts")
    assert len([line for line in hub.log if line.startswith("GET /") and "/api" not in line]) < 40


def test_an_incomplete_download_is_not_used_offline(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(resolve("org/tiny"))
    (path / "model.safetensors").unlink()
    forget(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFound, match="of another revision or file, or not complete"):
        resolve("org/tiny")


def gate(hub: Hub) -> None:
    hub.repositories["org/tiny"].is_gated = True


def answer_429(hub: Hub) -> None:
    hub.statuses.append(429)


def answer_401(hub: Hub) -> None:
    hub.statuses.append(401)


@pytest.mark.parametrize(
    ("name", "fault", "kind", "problem"),
    [
        ("org/tiny", gate, StartError, "org/tiny is gated: accept its terms at http"),
        ("org/tinny", None, NotFound, "has no model org/tinny; did you mean 'org/tiny'?; if it is"),
        ("orgg/tiny", None, NotFound, "did you mean 'org/tiny'?; if it is private, set HF_TOKEN"),
        ("org/tiny@v1", None, NotFound, "has no revision 'v1'"),
        ("org/tiny@mian", None, NotFound, "has no revision 'mian'; did you mean 'main'?"),
        ("org/tiny:confg.json", None, NotFound, "did you mean 'config.json'?"),
        ("org/tiny", answer_401, StartError, "does not accept HF_TOKEN: it is wrong, or has expi"),
        (
            "org/tiny",
            answer_429,
            Unreachable,
            "too many requests from this machine: try again in 7",
        ),
    ],
)
def test_an_error_is_a_sentence_that_names_near_models(
    hub: Hub, name: str, fault: Callable[[Hub], None] | None, kind: type, problem: str
) -> None:
    if fault:
        fault(hub)
    with pytest.raises(kind) as error:
        resolve(name)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_machine_without_network_gets_advice(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("org/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unreachable) as error:
        resolve("org/other")
    assert str(error.value) == (
        "org/other is not on this machine, and http://127.0.0.1:9 cannot be reached (Connection "
        "refused): give the path of a directory or file, set HF_ENDPOINT to a mirror, or "
        "HTTPS_PROXY; downloaded before: org/tiny"
    )


def test_a_hub_that_does_not_answer_ends_within_its_timeout(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.stalls = threading.Event()
    monkeypatch.setattr(hugging_face.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    with pytest.raises(Unreachable, match=r"cannot be reached \((timed out|no answer within 0.2)"):
        resolve("org/tiny")
    hub.stalls.set()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, hugging_face.__name__)
    with pytest.raises(StartError) as error:
        resolve("org/tiny")
    assert str(error.value) == (
        "hf:// needs huggingface_hub, which is not installed; install it with: pip install "
        "'mindspore-serving[hub]'"
    )


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([NotFound("no A")], "no A"),
        ([Unreachable("A is away"), Unreachable("B")], "A is away; b:// cannot be reached either"),
        ([NotFound("no A"), Unreachable("B is away")], "no A; B is away"),
        ([NotInstalled("no library"), NotFound("no B")], "no B"),
        ([NotInstalled("no library"), NotInstalled("none")], "no library"),
    ],
)
def test_errors_of_several_sources_are_combined(errors: list[ServingError], text: str) -> None:
    assert str(resolving.combined(errors, ["a", "b"][: len(errors)])) == text


def test_an_order_of_sources_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDSPORE_SERVING_SOURCES", "hf,hff")
    with pytest.raises(ServingError, match="MINDSPORE_SERVING_SOURCES has 'hff', expected some"):
        resolve("org/tiny")
