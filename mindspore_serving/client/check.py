"""Checks of a client's arguments, which raise RuntimeError naming the argument."""

from mindspore_serving.errors import InvalidInputs


def check_str(name: str, value: object) -> None:
    """Check that `value` is a str that is not empty."""
    if not isinstance(value, str):
        raise InvalidInputs(f"Parameter '{name}' should be str, but actually {type(value)}")
    if not value:
        raise InvalidInputs(f"Parameter '{name}' should not be empty str")


def check_address(value: object, *, has_tls: bool) -> None:
    """Check that `value` is "ip:port" or "unix:path"."""
    check_str("address", value)
    text = str(value)
    is_url = text.startswith(("http://", "https://"))
    if is_url or (":" not in text and not has_tls):  # with TLS, gRPC has a default port
        raise InvalidInputs(
            f"Parameter 'address' is '{text}', expected 'ip:port' of the server's gRPC port, as "
            "'127.0.0.1:5500', or 'unix:path'"
        )


def check_version(value: object) -> None:
    """Check that `value` is a version number; 0 is the newest."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputs(f"Parameter 'version_number' should be int, but actually {type(value)}")
    if not 0 <= value < 2**64:
        raise InvalidInputs("Parameter 'version_number' should be >= 0")


def check_timeout(value: object) -> None:
    """Check that `value` is None or a number of seconds over 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):  # type: ignore[operator]
        raise InvalidInputs(
            f"Parameter 'timeout' should be None or a number of seconds > 0, but actually {value!r}"
        )
