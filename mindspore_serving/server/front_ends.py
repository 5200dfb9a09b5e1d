"""The arguments of the functions that start servables and servers, checked.  Starts nothing."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.sampling_params import MAX_SEQUENCES
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.frontends.chat.models import LanguageRules
from mindspore_serving.frontends.key_file import EXPECTED, is_key
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.llm_serving.frames import Form
from mindspore_serving.frontends.sites import ANY
from mindspore_serving.servable import check
from mindspore_serving.server.ssl_config import SSLConfig

MOST_FRONT_ENDS = 64
GRPC_LIBRARIES = ("grpcio", "pygrpc-native")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")

ApiKeys: TypeAlias = "Sequence[str] | os.PathLike[str]"


@dataclass(frozen=True, slots=True)
class FrontEndOptions:
    """What is asked of an HTTP or gRPC server.  `max_message` is in bytes; with
    `client_shared_memory` clients of protocol v2 may name shared memory of this machine.  With
    several `front_ends` each is a process of its own.  `grpc_library` is one of GRPC_LIBRARIES.
    Keys are in `key_file`, if that is not None."""

    address: str
    max_message: int
    tls: SSLConfig | None
    api_keys: tuple[ApiKey, ...]
    limits: ServerLimits
    allow_loading: bool
    client_shared_memory: bool
    front_ends: int = 1
    grpc_library: str = GRPC_LIBRARIES[0]
    key_file: str | None = None

    def __post_init__(self) -> None:
        check.check_int("front_ends", self.front_ends, 1, MOST_FRONT_ENDS)
        check.check_bool("allow_loading", self.allow_loading)
        check.check_bool("client_shared_memory", self.client_shared_memory)
        self._check_library()

    def _check_library(self) -> None:
        library = self.grpc_library
        if library not in GRPC_LIBRARIES:
            accepted = " or ".join(map(repr, GRPC_LIBRARIES))
            raise InvalidField("grpc_library", f"is {library!r}, expected {accepted}")
        if library != GRPC_LIBRARIES[0] and (self.tls is not None or self.front_ends > 1):
            text = (
                f"{library!r} has no TLS and serves with one front end; use {GRPC_LIBRARIES[0]!r}"
            )
            raise InvalidField("grpc_library", text)

    @classmethod
    def from_arguments(
        cls,
        address: str,
        max_msg_mb_size: int,
        ssl_config: SSLConfig | None,
        api_keys: ApiKeys,
        limits: ServerLimits | None,
        *,
        may: tuple[bool, bool],
        front_ends: int,
        grpc_library: str = GRPC_LIBRARIES[0],
    ) -> "FrontEndOptions":
        """Clients `may` load servables, and name shared memory.

        Raises InvalidInputs naming the argument that is wrong."""
        check.check_str("address", address)
        check.check_int("max_msg_mb_size", max_msg_mb_size, 1, 512)
        for name, value, kind in (
            ("ssl_config", ssl_config, SSLConfig),
            ("limits", limits, ServerLimits),
        ):
            if value is not None and not isinstance(value, kind):
                raise InvalidInputs(
                    f"The type of {name} should be type of {kind.__name__}, but actually "
                    f"{type(value)}"
                )
        limits, max_message = limits or ServerLimits(), max_msg_mb_size << 20
        if limits.max_body_memory < max_message:
            text = f"is {limits.max_body_memory}, less than one message of {max_msg_mb_size} MB"
            raise InvalidField("max_body_memory", text)
        return cls(
            address,
            max_message,
            ssl_config,
            () if isinstance(api_keys, os.PathLike) else to_keys(api_keys),
            limits,
            *may,
            front_ends,
            grpc_library,
            os.fspath(api_keys) if isinstance(api_keys, os.PathLike) else None,
        )


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What is asked of an HTTP server besides."""

    use_status_codes: bool
    llm_serving_form: Form
    allowed_hosts: tuple[str, ...]
    allow_origins: tuple[str, ...]
    language: LanguageRules
    vllm_metrics: bool
    lora_directories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.check_bool("use_status_codes", self.use_status_codes)
        if self.llm_serving_form not in ("r21", "bare"):
            raise InvalidInputs(
                "Parameter 'llm_serving_form' should be 'r21' or 'bare', but actually "
                f"'{self.llm_serving_form}'"
            )
        check.check_bool("vllm_metrics", self.vllm_metrics)
        check.check_int("max_n", self.language.max_n, 1, MAX_SEQUENCES)
        check.check_bool("allow_priority", self.language.allows_priority)
        check.check_bool("allow_chat_template", self.language.allows_templates)
        if not isinstance(self.language.content, LanguageLimits):
            raise InvalidInputs(
                "The type of language_limits should be type of LanguageLimits, but actually "
                f"{type(self.language.content)}"
            )


def to_names(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """The argument `name`, which is a text or some of them."""
    return check.as_str_tuple(name, values) if values else ()


def to_keys(api_keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """The keys that are given."""
    keys = to_names("api_keys", api_keys)
    if not all(map(is_key, keys)):
        raise InvalidInputs(
            f"Parameter 'api_keys' should be texts of {EXPECTED}, but one is not; a file of keys "
            "is given as a pathlib.Path (serve: --api-key, --api-key-file)"
        )
    return tuple(map(ApiKey, keys))


def to_origins(given: Sequence[str]) -> tuple[str, ...]:
    """Those of web pages that may ask, as browsers name them.  Raises InvalidInputs for what no
    browser sends, a path behind the host for example."""
    origins = tuple(one.lower() for one in to_names("allow_origins", given))
    wrong = [one for one in origins if one != ANY and not _ORIGIN.fullmatch(one)]
    if wrong:
        raise InvalidInputs(
            f"Parameter 'allow_origins' has {wrong[0]!r}, expected '{ANY}' or SCHEME://HOST[:PORT] "
            "as in 'https://example.org' (serve: --allow-origin)"
        )
    return origins


def to_directories(given: Sequence[str]) -> tuple[str, ...]:
    """Those of adapters, without links.  Raises InvalidInputs for what is no directory."""
    paths = to_names("lora_directories", given)
    for path in paths:
        if not os.path.isdir(path):
            raise InvalidInputs(
                f"Parameter 'lora_directories' has '{path}', expected directories that exist"
            )
    return tuple(os.path.realpath(path) for path in paths)
