"""Frozen encoders: from pictures and texts to tokens, each with its place in the original; computed once, and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.encoders.catalogue import (
        EncoderError,
        choose_encoders,
        default_encoders,
        make_encoder,
        register_encoder,
    )
    from meq.encoders.contract import Encoder, Tokens
    from meq.encoders.encode import encode
    from meq.encoders.store import FeatureStore
else:
    make_lazy(__name__)

__all__ = [
    "Encoder",
    "EncoderError",
    "FeatureStore",
    "Tokens",
    "choose_encoders",
    "default_encoders",
    "encode",
    "make_encoder",
    "register_encoder",
]
