"""Frozen encoders: from pictures and texts to tokens, each with its place in the original."""

from meq.encoders.contract import Encoder, Tokens, encode

__all__ = ["Encoder", "Tokens", "encode"]
