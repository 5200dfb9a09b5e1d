"""Shared memory of clients: which files can be named, and that no client can harm the server."""

import errno
import os

import pytest

from mindspore_serving.core import buffers
from mindspore_serving.errors import Forbidden, InvalidInputs, NotFound, Overloaded
from mindspore_serving.frontends.v2.answers import RegisteredRegion
from mindspore_serving.frontends.v2.shared_memory import MAX_REGIONS, SharedMemory
from mindspore_serving.wire.v2.request import Region


@pytest.fixture
def place(tmp_path):
    """A directory in place of /dev/shm, with a file of 100 bytes."""
    directory = tmp_path / "shm"
    directory.mkdir()
    (directory / "data").write_bytes(bytes(range(100)))
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    return directory


@pytest.fixture
def memory(place):
    found = SharedMemory(is_enabled=True, directory=str(place))
    yield found
    found.close()


def test_shared_memory_is_off_by_default(place):
    memory = SharedMemory(directory=str(place))
    for action in (
        lambda: memory.register("r", "data", 0, 1),
        memory.unregister,
        memory.status,
        lambda: memory.read(Region("r", 0, 1)),
        lambda: memory.write(Region("r", 0, 1), []),
    ):
        with pytest.raises(Forbidden, match="--client-shared-memory"):
            action()


@pytest.mark.parametrize("key", ["data", "/data"])
def test_a_part_of_a_region_is_read_and_written(memory, place, key):
    memory.register("r", key, 10, 20)
    assert memory.read(Region("r", 5, 3)) == bytes([15, 16, 17])
    memory.write(Region("r", 0, 20), [memoryview(b"ab"), memoryview(b"c")])
    assert (place / "data").read_bytes()[9:14] == bytes([9]) + b"abc" + bytes([13])


def test_a_region_that_cannot_be_written_to_is_the_clients_fault(memory, monkeypatch):
    """Its file was made smaller, and there is no memory to make it larger again."""
    memory.register("r", "data", 0, 100)

    def full(number, data, at):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InvalidInputs, match="region 'r' cannot be written to: No space left"):
        memory.write(Region("r", 0, 3), [memoryview(b"abc")])


def test_partial_writes_are_continued(memory, place, monkeypatch):
    memory.register("r", "data", 0, 100)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, at: write(number, data[:2], at))
    memory.write(Region("r", 1, 9), [memoryview(b"abcde"), memoryview(b"fgh")])
    assert (place / "data").read_bytes()[:10] == b"\0abcdefgh\t"


def test_regions_are_shown_and_forgotten(memory):
    memory.register("a", "data", 0, 10)
    memory.register("b", "/data", 10, 90)
    assert memory.status("b") == [RegisteredRegion("b", "/data", 10, 90)]
    assert [one.name for one in memory.status()] == ["a", "b"]
    memory.unregister("a")
    memory.unregister("nobody")
    with pytest.raises(NotFound):
        memory.status("a")
    memory.unregister()
    assert memory.status() == []


@pytest.mark.parametrize(
    "key",
    [
        *("../secret", "/../secret", "..", ".", "", "/", "//data", "a/b", "data\0", "dätä"),
        *(".hidden", "-x", "data\n", "x" * 300, "~", "data/../../secret", "/etc/passwd"),
    ],
)
def test_a_key_is_the_name_of_a_file(memory, key):
    with pytest.raises(InvalidInputs, match="expected a name, and a key"):
        memory.register("r", key, 0, 1)


def test_keys_of_other_files_are_refused(memory, place, tmp_path):
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "directory").mkdir()
    os.mkfifo(place / "pipe")
    for key in ("link", "directory", "pipe", "nothing"):
        with pytest.raises(InvalidInputs, match=key):
            memory.register("r", key, 0, 1)
    assert memory.status() == []


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 101), (100, 1), (-1, 2), (0, 0), (0, -5), (2**62, 2**62), (50, 51)]
)
def test_a_region_lies_in_its_file(memory, offset, size):
    with pytest.raises(InvalidInputs):
        memory.register("r", "data", offset, size)
    assert memory.status() == []


@pytest.mark.parametrize("region", [Region("r", 0, 21), Region("r", 20, 1), Region("q", 0, 1)])
def test_a_part_lies_in_its_region(memory, region):
    memory.register("r", "data", 0, 20)
    with pytest.raises(InvalidInputs):
        memory.read(region)
    with pytest.raises(InvalidInputs):
        memory.write(region, [memoryview(b"x")])


def test_a_name_is_registered_once(memory):
    memory.register("r", "data", 0, 1)
    with pytest.raises(InvalidInputs, match="already"):
        memory.register("r", "data", 0, 1)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300])
def test_a_name_can_be_shown(memory, name):
    with pytest.raises(InvalidInputs):
        memory.register(name, "data", 0, 1)


def test_a_client_that_makes_its_file_smaller_is_refused(memory, place):
    memory.register("r", "data", 0, 100)
    os.truncate(place / "data", 10)
    with pytest.raises(InvalidInputs, match="made smaller"):
        memory.read(Region("r", 0, 100))


def test_the_number_of_regions_is_limited_and_files_are_closed(memory):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(MAX_REGIONS):
        memory.register(str(number), "data", 0, 1)
    with pytest.raises(Overloaded):
        memory.register("one more", "data", 0, 1)
    for _ in range(10):
        with pytest.raises(InvalidInputs):
            SharedMemory(is_enabled=True).register("r", "no-such-file-of-ours", 0, 1)
    memory.unregister()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def large(place):
    """The bytes of a large file of this name."""
    data = os.urandom(100_000)
    (place / "large").write_bytes(data)
    return data


def written(data, size):
    """What is where `data` are to lie, in memory that was used before."""
    target = memoryview(bytearray(b"x" * size))
    buffers.join([data]).write(target)
    return bytes(target)


def test_large_regions_are_read_when_they_are_sent(memory, place, large):
    memory.register("r", "large", 100, 90_000)
    data = memory.read(Region("r", 10, 80_000))
    os.pwrite(memory._regions["r"].file.number, b"later", 110)
    expected = b"later" + large[115:80_110]
    assert written(data, 80_000) == expected
    assert written(data[1000:70_000], 69_000) == expected[1000:70_000]
    assert bytes(data[:20]) == expected[:20]


def test_queued_data_is_read_after_its_region_is_unregistered(memory, place, large):
    memory.register("r", "large", 0, 100_000)
    data = memory.read(Region("r", 0, 100_000))
    memory.unregister("r")
    with (place / "data").open("rb"):  # it would get the number of a file that is closed
        assert written(data, 100_000) == large


def test_a_file_truncated_in_the_queue_ends_in_zeros(memory, place, large):
    memory.register("r", "large", 0, 100_000)
    data = memory.read(Region("r", 0, 100_000))
    os.truncate(place / "large", 60_000)
    assert written(data, 100_000) == large[:60_000] + bytes(40_000)


def test_files_are_closed_when_nothing_waits_for_them(memory, large):
    memory.register("r", "large", 0, 100_000)
    number = memory._regions["r"].file.number
    data = memory.read(Region("r", 0, 100_000))
    memory.unregister()
    os.fstat(number)
    del data
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
