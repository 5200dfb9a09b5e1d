"""Options of the functions that start HTTP and gRPC servers, checked.  Starts nothing."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.server_options import SERVER, ServerOptions
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.frontends.chat.models import LanguageRules
from mindspore_serving.frontends.key_file import EXPECTED, is_key
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.origins import ANY
from mindspore_serving.hub.sources import SOURCES
from mindspore_serving.servable import check
from mindspore_serving.server.ssl_config import SSLConfig

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")

_HOST = re.compile(r"[\w.-]{1,253}|\[?[0-9A-Fa-f:.]+\]?")

_KINDS = {"ssl_config": SSLConfig, "limits": ServerLimits, "language_limits": LanguageLimits}

ApiKeys: TypeAlias = "Sequence[str] | os.PathLike[str]"


@dataclass(frozen=True, kw_only=True)
class FrontEndOptions(ServerOptions):
    """Checked options of an HTTP or gRPC server.

    API keys are in `api_keys`, or in `key_file` if it is not None.
    """

    address: str
    ssl_config: SSLConfig | None = None
    api_keys: tuple[ApiKey, ...] = ()
    key_file: str | None = None
    limits: ServerLimits = ServerLimits()
    language_limits: LanguageLimits = LanguageLimits()

    def __post_init__(self) -> None:
        check.check_str("address", self.address)
        for name, row in SERVER.items():
            check.check_option(row, getattr(self, name))
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidInputs(
                    f"The type of {name} should be type of {kind.__name__}, but actually "
                    f"{type(value)}"
                )
        if self.limits.max_body_memory < self.max_message:
            text = f"is {self.limits.max_body_memory}, less than one message of "
            raise InvalidField("max_body_memory", f"{text}{self.max_msg_mb_size} MB")

    @classmethod
    def from_arguments(
        cls,
        *,
        api_keys: ApiKeys,
        limits: ServerLimits | None,
        language_limits: LanguageLimits | None = None,
        allow_origins: Sequence[str] = (),
        lora_directories: Sequence[str] = (),
        pull_prefixes: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
        payload_redact: Sequence[str] = (),
        **options: Any,
    ) -> "FrontEndOptions":
        """Create options from the arguments of a public function that starts a server.

        Raises InvalidInputs naming the invalid argument.
        """
        return cls(
            api_keys=() if isinstance(api_keys, os.PathLike) else to_keys(api_keys),
            key_file=os.fspath(api_keys) if isinstance(api_keys, os.PathLike) else None,
            limits=ServerLimits() if limits is None else limits,
            language_limits=LanguageLimits() if language_limits is None else language_limits,
            allowed_hosts=to_hosts(allowed_hosts),
            allow_origins=to_origins(allow_origins),
            lora_directories=to_directories(lora_directories),
            pull_prefixes=to_prefixes(pull_prefixes),
            payload_redact=check.check_option(SERVER["payload_redact"], payload_redact),
            **options,
        )

    @property
    def max_message(self) -> int:
        """Limit of a message, in bytes."""
        return self.max_msg_mb_size << 20

    @property
    def language(self) -> LanguageRules:
        """Rules for requests to language models."""
        return LanguageRules(
            self.max_n,
            self.allow_priority,
            self.limits,
            self.language_limits,
            self.allow_chat_template,
        )


def to_keys(api_keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """Convert and check API keys.  Raises InvalidInputs."""
    keys = check.as_str_tuple("api_keys", api_keys) if api_keys else ()
    if not all(map(is_key, keys)):
        raise InvalidInputs(
            f"Parameter 'api_keys' should be texts of {EXPECTED}, but one is not; a file of keys "
            "is given as a pathlib.Path"
        )
    return tuple(map(ApiKey, keys))


def to_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Convert and check the origins of web pages that may send requests.

    Raises InvalidInputs for a text that no browser sends as its origin: with a path, say.
    """
    names = check.check_option(SERVER["allow_origins"], origins)
    lowered = tuple(origin.lower() for origin in names)
    wrong = [origin for origin in lowered if origin != ANY and not _ORIGIN.fullmatch(origin)]
    if wrong:
        raise InvalidInputs(
            f"Parameter 'allow_origins' has {wrong[0]!r}, expected '{ANY}' or SCHEME://HOST[:PORT] "
            "as in 'https://example.org' (serve: --allow-origin)"
        )
    return lowered


def to_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """Convert and check host names by which clients may call the server.  Raises InvalidInputs."""
    names: tuple[str, ...] = check.check_option(SERVER["allowed_hosts"], hosts)
    wrong = [name for name in names if not _HOST.fullmatch(name)]
    if wrong:
        raise InvalidInputs(
            f"Parameter 'allowed_hosts' has {wrong[0]!r}, expected a name without scheme and port "
            "as in 'models.example.org' (serve: --allowed-host)"
        )
    return names


def to_directories(directories: Sequence[str]) -> tuple[str, ...]:
    """Resolve links of directories of adapters.  Raises InvalidInputs if one does not exist."""
    paths: tuple[str, ...] = check.check_option(SERVER["lora_directories"], directories)
    for path in paths:
        if not os.path.isdir(path):
            raise InvalidInputs(
                f"Parameter 'lora_directories' has '{path}', expected directories that exist"
            )
    return tuple(os.path.realpath(path) for path in paths)


def to_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Check beginnings of names that clients may download.  Raises InvalidInputs."""
    texts: tuple[str, ...] = check.check_option(SERVER["pull_prefixes"], prefixes)
    for text in texts:
        scheme, separator, _ = text.partition("://")
        if not separator or scheme not in SOURCES:
            known = ", ".join(f"{name}://" for name in SOURCES)
            raise InvalidInputs(
                f"Parameter 'pull_prefixes' has {text!r}, expected a source and the beginning of a "
                f"name, as hf://Qwen/; sources are {known} (serve: --allow-pulling)"
            )
    return texts
