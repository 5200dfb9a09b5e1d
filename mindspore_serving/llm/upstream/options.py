"""Engine options of an upstream: how another server is reached, and what it supports."""

import os
import ssl
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from mindspore_serving.core.default_sampling import OPTION, RECOMMENDED
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean, reason
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.upstream.targets import STATIC, UpstreamTarget, read_target, split_url

TAKEN = ("max_model_len", *(OPTION.format(name) for name in (*RECOMMENDED, "max_tokens")))
"""Options of language models that an upstream has."""
_STANDARD = frozenset({
    "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed",
    "stop", "temperature", "top_p",
})  # fmt: skip
_OURS = frozenset(SAMPLING) - {"prompt_logprobs"}  # no server sends these in a stream
_ONLY_OURS = frozenset({
    "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "mirostat", "mirostat_tau", "mirostat_eta", "text_bias", "num_beams", "length_penalty",
    "early_stopping", "no_repeat_ngram_size",
})  # fmt: skip
DIALECTS: Mapping[str, frozenset[str]] = {
    "openai": _STANDARD,
    "vllm": _OURS - _ONLY_OURS,
    "ours": _OURS,
}
"""Sampling parameters that a server accepts."""

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_OF_FLEETS = (
    "circuit_failures", "circuit_timeout", "slow_start", "hedge_after", "discovery_interval",
)  # fmt: skip


class UpstreamOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):  # fmt: skip
    """Options of the engine.

    Args:
        url: base URL of the API, as http://host:port/v1.
        upstreams: several upstreams instead of `url`, as `targets.read_target` reads them.
        model: name of the model on the server; "": the only model that it lists.
        key_variable: environment variable with the API key; "": no key is sent.
        dialect: sampling parameters that the server accepts: "openai" those of OpenAI's API, "vllm"
            and "ours" also those of vLLM and of this server.
        max_tokens_name: field for the token limit of a chat's answer.
        retries: attempts after the first, as long as no content has arrived.
        connect_timeout: seconds to connect.
        first_timeout: seconds to the first content.
        idle_timeout: seconds between two pieces of content.
        total_timeout: seconds of a request, retries included.
        health_interval: seconds between two health checks.
        circuit_failures: failures in a row that open the circuit of an upstream, 0 for none.
        circuit_timeout: seconds for which it is open at first.
        slow_start: seconds until an upstream that comes back has all of its share.
        hedge_after: seconds without content after which another upstream gets the request too; 0:
            never.
        discovery_interval: seconds between two looks for upstreams.
        tls_ca: PEM file of the authorities to trust instead of the system's.
        tls_verify: false: accept any certificate.
    """

    url: str = ""
    upstreams: tuple[str, ...] = ()
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
    circuit_failures: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    circuit_timeout: _Seconds = 5.0
    slow_start: _SecondsOrNone = 30.0
    hedge_after: _SecondsOrNone = 0.0
    discovery_interval: _Seconds = 10.0
    tls_ca: str = ""
    tls_verify: bool = True

    @property
    def targets(self) -> tuple[UpstreamTarget, ...]:
        """The upstreams, and the sources of others."""
        return tuple(map(read_target, self.upstreams or (self.url,)))

    @property
    def is_fleet(self) -> bool:
        """True if there may be several upstreams."""
        return len(self.targets) > 1 or self.targets[0].is_source

    @property
    def known(self) -> frozenset[str]:
        """Sampling parameters that the server accepts."""
        return DIALECTS[self.dialect]

    @property
    def has_extensions(self) -> bool:
        """True if the server accepts more than OpenAI's API."""
        return self.dialect != "openai"


def read_options(values: Mapping[str, Any]) -> UpstreamOptions:
    """Read `engine_options`.  Raises StartError, naming the option that is wrong."""
    for name in values.keys() - set(UpstreamOptions.__struct_fields__):
        near = did_you_mean(name, UpstreamOptions.__struct_fields__)
        raise StartError(f"engine {UPSTREAM!r} has no option {name!r} (engine_options){near}")
    try:
        options = msgspec.convert(dict(values), UpstreamOptions)
    except msgspec.ValidationError as error:
        raise StartError(f"engine {UPSTREAM!r}, engine_options: {error}") from None
    if options.dialect not in DIALECTS:
        accepted = ", ".join(DIALECTS)
        raise StartError(f"dialect is {options.dialect!r}, expected one of {accepted}")
    if bool(options.url) == bool(options.upstreams):
        raise StartError(f"engine {UPSTREAM!r} needs the option 'url' or 'upstreams', one of them")
    if options.url and (split_url(options.url).scheme not in STATIC or "," in options.url):
        raise StartError(f"the upstream's url is {options.url!r}, expected http://host:port/v1")
    origins = [target.origin for target in options.targets if not target.is_source]
    for origin in origins:
        if origins.count(origin) > 1:
            raise StartError(f"the upstream {origin} is there twice: set its weight instead")
    for name in _OF_FLEETS:
        if name in values and not options.is_fleet:
            raise StartError(f"{name} is for several upstreams, but there is one: leave it out")
    return options


def read_model_options(options: Mapping[str, Any]) -> EngineConfig:
    """Return the options of a language model of which an upstream has those of `TAKEN`.

    Raises StartError.
    """
    for name in options:
        if name not in TAKEN:
            near = did_you_mean(name, TAKEN)
            accepted = ", ".join(TAKEN)
            text = f"engine {UPSTREAM!r} has no option {name}, expected any of {accepted}{near}"
            raise StartError(text)
    try:
        return EngineConfig(**options)
    except InvalidInputs as error:
        raise StartError(str(error)) from None


def check_options(values: Mapping[str, Any]) -> None:
    """Check the options as far as possible before a worker is started.  Raises StartError."""
    options = read_options(values)
    for target in options.targets:
        read_key(target.key_variable or options.key_variable)
    if not all(target.url.startswith("http://") for target in options.targets):
        make_context(options)


def read_key(variable: str) -> str:
    """Return the key from the environment, "" without a variable.

    Raises StartError, which never quotes the key.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise StartError(f"key_variable is {variable!r}, which is not set in the environment")
    if not (key.isascii() and key.isprintable()):
        raise StartError(f"the key in {variable!r} has characters that are not printable ASCII")
    return key


def make_context(options: UpstreamOptions) -> ssl.SSLContext:
    """Return the TLS context for https.  Raises StartError for an unreadable `tls_ca`."""
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"tls_ca is {options.tls_ca!r}, which cannot be read: {reason(error)}"
        ) from None
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
