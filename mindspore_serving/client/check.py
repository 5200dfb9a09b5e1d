"""The checks of a client's arguments; all raise RuntimeError, which names the argument."""

from mindspore_serving.errors import InvalidInputs


def check_str(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInputs(f"Parameter '{name}' should be str, but actually {type(value)}")
    if not value:
        raise InvalidInputs(f"Parameter '{name}' should not be empty str")


def check_address(value: object, *, has_tls: bool) -> None:
    check_str("address", value)
    text = str(value)
    is_url = text.startswith(("http://", "https://"))
    if is_url or (":" not in text and not has_tls):  # of TLS gRPC knows the port
        raise InvalidInputs(
            f"Parameter 'address' is '{text}', expected 'ip:port' of the server's gRPC port, as "
            "'127.0.0.1:5500', or 'unix:path'"
        )


def check_version(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputs(f"Parameter 'version_number' should be int, but actually {type(value)}")
    if not 0 <= value < 2**64:
        raise InvalidInputs("Parameter 'version_number' should be >= 0")


def check_timeout(value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):  # type: ignore[operator]
        raise InvalidInputs(
            f"Parameter 'timeout' should be None or a number of seconds > 0, but actually {value!r}"
        )
