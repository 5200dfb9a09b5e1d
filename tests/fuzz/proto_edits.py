"""Edits of a PredictRequest: along its structure, and of the bytes that encode it."""

from collections.abc import Callable
from random import Random

from mindspore_serving.proto import ms_service_pb2 as pb
from tests.fuzz import byte_edits, odd_values

_NUMBERS = (0, 1, 2, 3, 7, 255, 65536, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1)


def edit(data: bytes, random: Random) -> bytes:
    """The message `data` after one to four edits."""
    if random.random() < 0.25:
        return byte_edits.edit(data, random)
    request = pb.PredictRequest.FromString(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(_EDITS)(request, random)
    encoded = request.SerializeToString()
    return random.choice(_WIRE_EDITS)(encoded, random) if random.random() < 0.3 else encoded


def _tensor(request: pb.PredictRequest, random: Random) -> pb.Tensor:
    """One of its tensors, or a new one."""
    instance = random.choice(request.instances) if request.instances else request.instances.add()
    names = sorted(instance.items)
    return instance.items[random.choice(names) if names else "x"]


def _spec(request: pb.PredictRequest, random: Random) -> None:
    spec, kind = request.servable_spec, random.randrange(4)
    if kind == 0:
        spec.name = odd_values.text(random)
    elif kind == 1:
        spec.method_name = odd_values.text(random)
    elif kind == 2:
        spec.version_number = random.choice((*_NUMBERS, 2**64 - 1))
    else:
        request.ClearField("servable_spec")


def _instances(request: pb.PredictRequest, random: Random) -> None:
    kind = random.randrange(4)
    if kind == 0:
        request.ClearField("instances")
    elif kind == 1 and request.instances:
        first = request.instances[0]
        request.instances.extend([first] * random.choice((1, 2, 40, 1500)))
    elif kind == 2:
        request.instances.add()
    elif request.instances:
        del request.instances[random.randrange(len(request.instances))]


def _inputs(request: pb.PredictRequest, random: Random) -> None:
    instance = random.choice(request.instances) if request.instances else request.instances.add()
    names = sorted(instance.items)
    if names and random.random() < 0.5:
        del instance.items[random.choice(names)]
    else:
        for number in range(random.choice((1, 1, 3, 500))):
            name = odd_values.text(random)[:200] + str(number or "")
            instance.items[name].CopyFrom(_tensor(request, random))


def _shape(request: pb.PredictRequest, random: Random) -> None:
    dims = _tensor(request, random).shape.dims
    kind = random.randrange(4)
    if kind == 0 and dims:
        dims[random.randrange(len(dims))] = random.choice((*_NUMBERS, -1, -(2**63)))
    elif kind == 1:
        dims.extend([random.choice((*_NUMBERS, -1))] * random.choice((1, 2, 9, 33, 5000)))
    elif kind == 2:
        del dims[:]
    else:
        dims.extend([0])


def _dtype(request: pb.PredictRequest, random: Random) -> None:
    _tensor(request, random).dtype = random.choice((*range(16), 99, -1, 2**31 - 1))  # type: ignore[assignment]


def _content(request: pb.PredictRequest, random: Random) -> None:
    tensor, kind = _tensor(request, random), random.randrange(5)
    if kind == 0:
        tensor.data = tensor.data[: random.randrange(len(tensor.data) + 1)]
    elif kind == 1:
        tensor.data = random.randbytes(random.choice((0, 1, 3, 8, 100, 40_000)))
    elif kind == 2:
        tensor.ClearField("tensor_data")
    elif kind == 3:
        tensor.bytes_val.extend([random.randbytes(5)] * random.choice((1, 2, 1000)))
    else:
        del tensor.bytes_val[:]


def _shared_memory(request: pb.PredictRequest, random: Random) -> None:
    """What only the original's own processes sent."""
    number = random.choice(_NUMBERS)
    content = pb.ShmTensorData(
        memory_key=odd_values.text(random)[:50],
        bytes_size=number,
        data_offset=random.choice(_NUMBERS),
        data_size=number,
    )
    if random.random() < 0.5:
        _tensor(request, random).shm_data.CopyFrom(content)
    else:
        instance = request.instances[0] if request.instances else request.instances.add()
        instance.output_buffers["y"].CopyFrom(content)


_EDITS: tuple[Callable[[pb.PredictRequest, Random], None], ...] = (
    *(_spec, _instances, _inputs, _shape, _shape, _dtype, _dtype),
    *(_content, _content, _content, _shared_memory),
)


def _append_field(data: bytes, random: Random) -> bytes:
    """A field that the message does not have, or has otherwise."""
    tag = bytes([random.choice((3, 4, 9, 15)) << 3 | random.randrange(8)])
    return (
        data + tag + random.choice((b"", b"\x00", b"\xff" * 10, b"\x05hello", random.randbytes(9)))
    )


def _twice(data: bytes, _: Random) -> bytes:
    return data + data


def _long_number(data: bytes, random: Random) -> bytes:
    """A length of more bytes than it needs, or more than there can be."""
    return data[:1] + random.choice((b"\x80" * 9 + b"\x01", b"\xff" * 11, b"\x80\x00")) + data[1:]


def _groups(data: bytes, random: Random) -> bytes:
    count = random.choice((1, 10, 200, 20_000))
    return data + b"\x7b" * count + random.choice((b"", b"\x7c" * count))


_WIRE_EDITS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_append_field, _twice, _long_number, _groups, byte_edits.edit),
)
