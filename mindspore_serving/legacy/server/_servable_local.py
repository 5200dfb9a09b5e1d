"""Kept path: names that scripts for the original import from here."""

from mindspore_serving.server.config import ServableStartConfig, merge_config

__all__ = ["ServableStartConfig", "merge_config"]
