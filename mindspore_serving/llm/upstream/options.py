"""How another server is reached and asked: the engine options of a model that is there."""

import os
import ssl
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.errors import StartError, did_you_mean

_STANDARD = frozenset({
    "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed",
    "stop", "temperature", "top_p",
})  # fmt: skip
_OURS = frozenset(SAMPLING) - {"prompt_logprobs"}  # which servers do not give in a stream
_ONLY_OURS = frozenset({"typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"})
DIALECTS: Mapping[str, frozenset[str]] = {
    "openai": _STANDARD,
    "vllm": _OURS - _ONLY_OURS,
    "ours": _OURS,
}
"""Which sampling parameters a server knows."""

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class UpstreamOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):  # fmt: skip
    """Options of the engine.

    Args:
        url: of the API, as http://host:port/v1.
        model: what the server calls the model; "": the only one that it lists.
        key_variable: the environment variable with the key that is sent; "": none is.
        dialect: which parameters the server knows: "openai" those of OpenAI's API, "vllm" and
            "ours" also those of these servers.
        max_tokens_name: what it calls the most tokens of an answer to a chat.
        retries: how often a request is sent again, if nothing of its answer has come.
        connect_timeout: seconds to connect.
        first_timeout: seconds to the first piece of an answer that has content.
        idle_timeout: seconds from one such piece to the next.
        total_timeout: seconds for a whole answer, tries included.
        health_interval: seconds between two looks at whether the server answers.
        tls_ca: a PEM file of authorities to trust in place of the system's.
        tls_verify: false: its certificate may be anybody's.
    """

    url: str
    model: str = ""
    key_variable: str = ""
    dialect: str = "openai"
    max_tokens_name: str = "max_tokens"
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    connect_timeout: _Seconds = 5.0
    first_timeout: _Seconds = 300.0
    idle_timeout: _Seconds = 60.0
    total_timeout: _Seconds = 3600.0
    health_interval: _Seconds = 5.0
    tls_ca: str = ""
    tls_verify: bool = True

    @property
    def known(self) -> frozenset[str]:
        """The sampling parameters that the server knows."""
        return DIALECTS[self.dialect]

    @property
    def has_extensions(self) -> bool:
        """Whether it knows more than OpenAI's API."""
        return self.dialect != "openai"


def read_options(given: Mapping[str, Any]) -> UpstreamOptions:
    """Raises StartError naming an option that is wrong."""
    for name in given.keys() - set(UpstreamOptions.__struct_fields__):
        near = did_you_mean(name, UpstreamOptions.__struct_fields__)
        raise StartError(f"engine {UPSTREAM!r} has no option {name!r} (engine_options){near}")
    try:
        options = msgspec.convert(dict(given), UpstreamOptions)
    except msgspec.ValidationError as error:
        raise StartError(f"engine {UPSTREAM!r}, engine_options: {error}") from None
    if options.dialect not in DIALECTS:
        accepted = ", ".join(DIALECTS)
        raise StartError(f"dialect is {options.dialect!r}, expected one of {accepted}")
    split_url(options.url)
    return options


def longest_of(options: Mapping[str, Any]) -> int | None:
    """The `max_model_len` of what is not for the other server: all that may be there.  Raises
    StartError.
    """
    for name in options:
        if name != "max_model_len":
            raise StartError(
                f"engine {UPSTREAM!r} has no option {name}, expected max_model_len alone"
            )
    longest: int | None = options.get("max_model_len")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise StartError(f"max_model_len is {longest!r}, expected an int >= 1")
    return longest


def check_options(given: Mapping[str, Any]) -> None:
    """What can be known before a worker is started.  Raises StartError, as that would."""
    options = read_options(given)
    read_key(options.key_variable)
    make_context(options)


def split_url(url: str) -> SplitResult:
    """Raises StartError unless it is http(s)://HOST[:PORT][/PATH] and nothing else."""
    try:
        found = urlsplit(url)
        is_whole = found.scheme in ("http", "https") and bool(found.hostname)
        is_plain = url.isascii() and url.isprintable() and " " not in url
        is_plain = is_plain and not (found.query or found.fragment or "@" in found.netloc)
        if is_whole and is_plain and found.port != 0:
            return found
    except ValueError:
        pass
    # There may be a password before an "@", and a key behind a "?".
    shown = "a text with @ or ?" if {"@", "?"} & set(url) else repr(url)
    raise StartError(f"the upstream's url is {shown}, expected one as http://host:port/v1")


def read_key(variable: str) -> str:
    """The key in the environment; "" without a variable.  Raises StartError, which has no key."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise StartError(f"key_variable is {variable!r}, which the environment does not have")
    if not (key.isascii() and key.isprintable()):
        raise StartError(f"the key in {variable!r} has other characters than printable ASCII")
    return key


def make_context(options: UpstreamOptions) -> ssl.SSLContext | None:
    """For TLS; None for http.  Raises StartError if authorities cannot be read."""
    if split_url(options.url).scheme == "http":
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"tls_ca is {options.tls_ca!r}, which cannot be read: {error}") from None
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
