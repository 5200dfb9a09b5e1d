"""Stores that servers share: what is read back, what is refused, and what a broken store costs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("redis")
pytest.importorskip("zstandard")

import fsspec
import zstandard

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import stored_blocks
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.stored_blocks import StoredBlocks
from mindspore_serving.llm.storage import stores
from mindspore_serving.llm.storage.block_level import BlockLevel
from mindspore_serving.llm.storage.block_threads import BlockThreads
from mindspore_serving.llm.storage.stores import open_disk
from mindspore_serving.stores import circuit
from mindspore_serving.stores.file_store import SUFFIX
from mindspore_serving.stores.redis_store import PASSWORD, PREFIX
from mindspore_serving.stores.sealing import HEAD_BYTES
from tests.e2e.authority import Authority
from tests.llm.counting import BLOCK, PROMPT, Counting, ask
from tests.llm.storage.test_block_files import block, digest
from tests.llm.toy_answers import continuation
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import PATIENCE, eventually

SIZE = 100
VALUE = HEAD_BYTES + SIZE
FULL = len(PROMPT) // BLOCK * BLOCK
SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[KeyValueServer]:
    with KeyValueServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def bucket_url() -> Iterator[str]:
    pytest.importorskip("moto.server")
    import boto3
    from moto.server import ThreadedMotoServer

    objects = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    objects.start()
    host, port = objects.get_host_and_port()
    url = f"http://{host}:{port}"
    names = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    boto3.client("s3", "us-east-1", endpoint_url=url, **names).create_bucket(Bucket="bucket")
    yield url
    objects.stop()


@pytest.fixture
def variables(monkeypatch) -> None:
    monkeypatch.setenv(PASSWORD, key_value_server.PASSWORD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture(autouse=True)
def patient(monkeypatch, variables) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(stored_blocks, "CLOSING_SECONDS", PATIENCE)
    monkeypatch.setattr(stored_blocks, "SLOWNESS", PATIENCE)


def open_store(
    url: str, model: bytes = b"model", block_bytes: int = SIZE, **options: object
) -> BlockLevel:
    names = {f"prefix_cache_store_{name}": value for name, value in options.items()}
    names.setdefault("prefix_cache_store_timeout", PATIENCE)
    names.setdefault("prefix_cache_store_compression", "none")
    config = EngineConfig(prefix_cache_store=url, **names)
    return stores.open_shared(config, model, block_bytes)


@pytest.fixture(params=["redis", "file", "memory", "s3"])
def url(request, tmp_path, monkeypatch) -> str:
    """Return the URL of an empty store."""
    if request.param == "redis":
        server = request.getfixturevalue("server")
        server.client.flushall()
        return server.url
    if request.param == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("bucket_url"))
        return f"s3://bucket/{tmp_path.name}"
    return f"{request.param}://{tmp_path}/store"


def replace_values(url: str, change) -> None:
    """Change each value of a store, as somebody who may write to it could."""
    if url.startswith("redis"):
        import redis

        client = redis.Redis.from_url(url, password=key_value_server.PASSWORD)
        for key in client.keys(f"{PREFIX}*"):
            client.set(key, change(client.get(key)))
        return
    level = open_store(url)
    if url.startswith("file"):
        for path in Path(url.removeprefix("file://")).glob(f"*{SUFFIX}"):
            path.write_bytes(change(path.read_bytes()))
        return
    files, root = level._store._files, level._store._root
    for path in files.find(root):
        files.pipe_file(path, change(files.cat_file(path)))


def test_a_block_is_read_by_another_server_of_the_same_model(url):
    first, second = open_store(url), open_store(url)
    assert second.read(digest(1)) is None
    assert first.write(digest(1), block(1))
    assert bytes(second.read(digest(1))) == bytes(block(1))
    assert open_store(url, b"other").read(digest(1)) is None
    assert open_store(url, compression="zstd").write(digest(2), block(2))
    assert bytes(second.read(digest(2))) == bytes(block(2))
    assert second.write(digest(2), block(2))  # is there
    counts = second.counts
    assert (counts.misses, counts.errors, counts.bytes_written) == (1, 0, 0)
    assert VALUE < counts.bytes_read < 2 * VALUE


DAMAGES = {
    "short": lambda value: value[:-1],
    "long": lambda value: value + bytes(1 << 20),
    "changed": lambda value: value[:-1] + b"x",
    "other head": lambda value: b"x" + value[1:],
    "pickle": lambda value: b"cos\nsystem\n(S'false'\ntR.",
    "one byte": lambda value: b"x",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_wrong_bytes_are_a_miss_and_are_removed(url, damage):
    level = open_store(url)
    level.write(digest(1), block(1))
    replace_values(url, DAMAGES[damage])
    assert level.read(digest(1)) is None
    assert (level.counts.misses, level.counts.errors) == (0, 1)
    assert level.read(digest(1)) is None
    assert (level.counts.misses, level.counts.errors) == (1, 1)
    assert level.write(digest(1), block(1))
    assert bytes(level.read(digest(1))) == bytes(block(1))


def test_blocks_of_servers_without_the_secret_are_not_read(url, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(SECRET + b"\n")
    level, other = open_store(url, key=str(key)), open_store(url)
    other.write(digest(1), block(1))
    assert level.read(digest(1)) is None
    level.write(digest(1), block(1))
    # A writer without the secret can compute no check, even for a name that is there.
    name = level.values.name(digest(1))
    level._store.remove(name)
    level._store.put(name, other.values.pack(name, block(2)))
    assert level.read(digest(1)) is None
    assert level.counts.errors == 1


def test_a_value_that_decompresses_to_more_than_a_block_is_refused_before():
    level = open_store("memory://bombs")
    name = level.values.name(digest(1))
    for content in (bytes(1 << 24), bytes(SIZE - 1)):
        bomb = zstandard.ZstdCompressor().compress(content)
        value = level.values.seal.head(name, bomb, b"\1") + bomb
        assert level.values.unpack(name, value) is None


def test_the_values_of_all_models_stay_within_the_bytes(url):
    levels = [open_store(url, model, size=9 * VALUE) for model in (b"one", b"two")]
    server = url.startswith("redis")
    for number in range(30):
        assert levels[number % 2].write(digest(number), block(number)) == (not server)
    if not server:  # its memory is larger than that before the first block
        read = [levels[number % 2].read(digest(number)) is not None for number in range(30)]
        assert 3 <= sum(read) <= 9
        assert any(read[-5:])


def test_a_block_is_removed_after_its_time_to_live(server):
    server.client.flushall()
    level = open_store(server.url, seconds=50.0)
    level.write(digest(1), block(1))
    (key,) = server.client.keys(f"{PREFIX}*")
    assert 0 < server.client.pttl(key) <= 50_000
    server.client.pexpire(key, 1000)
    level.read(digest(1))  # a use
    assert server.client.pttl(key) > 1000
    server.client.pexpire(key, 1)
    eventually(lambda: not server.client.exists(key))
    assert level.read(digest(1)) is None
    assert level.counts.errors == 0


def test_old_files_are_removed_though_there_is_room(tmp_path):
    level = open_store(f"file://{tmp_path}/store", seconds=60.0)
    level.write(digest(1), block(1))
    (path,) = (tmp_path / "store").iterdir()
    os.utime(path, (1, 1))
    open_store(f"file://{tmp_path}/store", seconds=60.0).write(digest(2), block(2))
    assert not path.exists()


def test_a_server_with_tls_and_a_password(tmp_path, monkeypatch):
    certificates = Authority(tmp_path, "authority")
    files = (certificates.ca, *certificates.issue("server"))
    with KeyValueServer(tmp_path, certificates=files) as server:
        level = open_store(server.url)
        assert level.write(digest(1), block(1))
        assert bytes(open_store(server.url).read(digest(1))) == bytes(block(1))
        assert "127.0.0.1" in str(level)
        monkeypatch.setenv(PASSWORD, "wrong")
        with pytest.raises(StartError, match="refuses the connection") as refused:
            open_store(server.url)
        assert "wrong" not in str(refused.value).split("password in")[0].replace("wrong pass", "")
        monkeypatch.setenv(PASSWORD, key_value_server.PASSWORD)
        other = open_store(server.url.partition("?")[0])  # trusts the authorities of the system
        assert other.read(digest(1)) is None
        assert other.counts.errors == 1


def test_a_full_server_is_a_store_that_can_be_read(tmp_path):
    options = ["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]
    size = 200_000
    with KeyValueServer(tmp_path, *options) as server:
        level = open_store(server.url, block_bytes=size)
        contents = [memoryview(os.urandom(size)) for _ in range(30)]
        written = [level.write(digest(i), content) for i, content in enumerate(contents)]
        count = written.index(False)
        assert 0 < count < 20
        assert not any(written[count:])
        assert level.counts.errors == 1  # further blocks were not sent
        assert level.read(digest(0)) == contents[0]
    with KeyValueServer(tmp_path, "--maxmemory-policy", "noeviction") as server:
        level = open_store(server.url, block_bytes=size, size=1_500_000)
        written = [level.write(digest(i), content) for i, content in enumerate(contents)]
        assert not all(written)
        assert server.client.info("memory")["used_memory"] < 3_000_000


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no-such-scheme://x/y", "scheme 'no-such-scheme', expected redis, rediss, file"),
        ("redis://127.0.0.1:port", "no URL of a server"),
        ("file://relative/path", "expected file:///DIRECTORY"),
    ],
)
def test_wrong_urls_are_start_errors(url, message):
    with pytest.raises(StartError, match=message):
        open_store(url)


def test_wrong_secrets_and_limits_are_start_errors(tmp_path):
    (tmp_path / "short").write_text("short\n")
    for path, message in (("short", "has 5 bytes, expected at least 16"), ("no", "cannot be read")):
        with pytest.raises(StartError, match=message):
            open_store("memory://x", key=str(tmp_path / path))
    with pytest.raises(StartError, match="prefix_cache_store_size is 9 bytes"):
        open_store("memory://x", size=9)


def test_missing_library_is_a_start_error_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "mindspore_serving.stores.redis_store")
    with pytest.raises(StartError, match="prefix_cache_store needs redis, which is not installed"):
        open_store("redis://127.0.0.1")


# Engines


def make(*levels, threads=BlockThreads) -> Engine:
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=16, block_size=BLOCK)
    engine = Engine(Counting(64), None, config)
    engine.keep_blocks(StoredBlocks(engine.runner, engine.pool, levels, threads))
    return engine


def store_of(url: str, **options: object) -> BlockLevel:
    return open_store(url, block_bytes=Counting(64).block_bytes, **options)


def written(engine: Engine) -> None:
    """Wait until the engine has written its blocks."""
    eventually(lambda: engine.do_idle_work() is None)


ANSWER = [continuation(PROMPT, 3, 128)]


def test_prompts_of_an_engine_are_hits_on_another(url):
    first, second = make(store_of(url)), make(store_of(url))
    assert ask(first, [PROMPT]) == (ANSWER, [0])
    written(first)
    assert ask(second, [PROMPT, [*PROMPT[:22], 99]]) == (
        [*ANSWER, continuation([*PROMPT[:22], 99], 3, 128)],
        [FULL, 20],
    )
    stats = second.stats()
    assert (stats.num_store_hits, stats.num_store_errors, stats.num_disk_hits) == (FULL, 0, 0)
    assert stats.num_store_bytes_read > 0
    assert set(second.runner.computed) == {*range(20, 25), *range(FULL, len(PROMPT) + 2)}
    first.close()
    second.close()


def test_blocks_are_written_to_a_store_while_requests_run(server):
    server.client.flushall()
    engine = make(store_of(server.url))
    ask(engine, [PROMPT], count=60)
    eventually(lambda: len(server.client.keys(f"{PREFIX}*")) > 5)  # nothing was idle
    assert engine.stats().num_store_errors == 0
    engine.close()


def test_the_disk_is_asked_first_and_gets_the_blocks_of_the_store(tmp_path, server):
    server.client.flushall()
    first = make(store_of(server.url))
    ask(first, [PROMPT[:22]])
    written(first)
    disk = open_disk(tmp_path, b"model", first.runner.block_bytes, 1 << 20)
    second = make(disk, store_of(server.url))
    assert ask(second, [PROMPT]) == (ANSWER, [20])
    written(second)
    assert len(list(tmp_path.glob("*.block"))) == 11  # with that of the answer
    second.close()
    third = make(
        open_disk(tmp_path, b"model", first.runner.block_bytes, 1 << 20), store_of(server.url)
    )
    assert ask(third, [PROMPT]) == (ANSWER, [FULL])
    stats = third.stats()
    assert (stats.num_disk_hits, stats.num_store_hits) == (FULL, 0)
    first.close()
    third.close()


def test_stopped_server_delays_prompts_once_and_has_hits_later(tmp_path, monkeypatch):
    monkeypatch.setattr(circuit, "FIRST_PAUSE", PATIENCE)
    with KeyValueServer(tmp_path) as server:
        first = make(store_of(server.url))
        ask(first, [PROMPT])
        written(first)
        level = store_of(server.url, timeout=0.2)
        second = make(level)
        server.stop()
        assert ask(second, [PROMPT]) == (ANSWER, [0])
        eventually(lambda: level.reads.is_open and level.counts.errors)
        errors = level.counts.errors
        assert ask(second, [[7, *PROMPT]])[1] == [0]  # the store is not asked
        assert level.counts.errors == errors
        server.go_on()
        third = make(store_of(server.url))
        assert ask(third, [PROMPT]) == (ANSWER, [FULL])
        for engine in (first, second, third):
            engine.close()


def test_server_that_is_gone_is_a_miss_until_a_new_start(tmp_path, monkeypatch):
    monkeypatch.setattr(circuit, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(circuit, "MAX_PAUSE", 0.01)
    with KeyValueServer(tmp_path) as server:
        engine = make(store_of(server.url))
    assert ask(engine, [PROMPT]) == (ANSWER, [0])
    eventually(lambda: engine.do_idle_work() is None)
    level = store_of(server.url)  # a server need not be there at the start
    assert level.read(digest(1)) is None
    assert level.counts.errors == 1
    with KeyValueServer(tmp_path, port=server.port) as server:
        eventually(lambda: level.write(digest(1), block(1)[: level.values.max_bytes]))
        ask(engine, [[7, *PROMPT]])
        eventually(lambda: engine.do_idle_work() is None and server.client.dbsize() > 1)
        assert engine.stats().num_store_errors > 0
        engine.close()


def test_prompts_that_a_quick_store_lacks_are_computed_in_the_next_step(server, monkeypatch):
    server.client.flushall()
    engine = make(store_of(server.url))
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    engine.add("runs", [1, 2, 3], params)
    engine.step()
    monkeypatch.setattr(stored_blocks, "PROBE_SECONDS", 2 * PATIENCE)
    for number in range(5):
        engine.add(f"{number}", [number, *range(20, 30)], params)
        engine.step()
        assert engine.started == [f"{number}"]
    engine.close()


class Slow(BlockThreads):
    """A store that takes far longer for a block than an engine."""

    def _read(self) -> None:
        import time

        for each in iter(self._reads.get, None):
            time.sleep(0.05)
            self.results.put((self.level, each, self.level.read(each)))


def test_blocks_that_come_slower_than_they_are_computed_are_computed(server, monkeypatch):
    server.client.flushall()
    first = make(store_of(server.url))
    ask(first, [PROMPT])
    written(first)
    monkeypatch.setattr(stored_blocks, "SLOWNESS", 0.06)
    monkeypatch.setattr(circuit, "FIRST_PAUSE", PATIENCE)
    level = store_of(server.url)
    level.num_readers = 1
    second = make(level, threads=Slow)
    ask(second, [list(range(60, 110))])
    cost = second.cache.stored.cost
    assert cost.seconds > 0
    cost.seconds = 1e-4  # however busy the machine is
    said, (cached,) = ask(second, [PROMPT])
    assert said == ANSWER
    assert cached < FULL
    num_hits = second.stats().num_store_hits
    ask(second, [[*PROMPT[:8], 5, 6, 7, 8, 9]])
    assert second.stats().num_store_hits == num_hits  # the store is not asked
    first.close()
    second.close()


def test_prompts_of_a_store_without_an_answer_are_computed(server):
    class Silent(BlockThreads):
        def read(self, digest):
            pass

    second = make(store_of(server.url, timeout=0.02), threads=Silent)
    assert ask(second, [PROMPT]) == (ANSWER, [0])
    second.close()


def test_fsspec_file_systems_are_stores(tmp_path):
    fsspec.filesystem("memory").store.clear()
    first = make(store_of("memory://prompts/a"))
    ask(first, [PROMPT])
    written(first)
    assert len(fsspec.filesystem("memory").find("/prompts/a")) == 11
    first.close()
