"""Frozen encoders: from pictures and texts to tokens, each with its place in the original; computed once, and kept."""

from meq.encoders.builtin import default_encoders
from meq.encoders.choice import choose_encoders
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.encode import encode
from meq.encoders.store import FeatureStore

__all__ = ["Encoder", "FeatureStore", "Tokens", "choose_encoders", "default_encoders", "encode"]
