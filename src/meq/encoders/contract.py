"""What an encoder is, and what it makes of a picture, a text or a sound."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from meq.data.content import Content

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """What an encoder makes of one picture, text or sound, and where in the original each token lies."""

    features: Float[Tensor, "N W"]
    boxes: Float[Tensor, "N 4"] | None = None
    """Left, top, right, bottom in pixels of the original picture; NaN for a token without a place."""
    spans: Int[Tensor, "N 2"] | None = None
    """First and past-the-last character of the text; -1, -1 for a token without a place."""
    times: Float[Tensor, "N 2"] | None = None
    """Begin and end in seconds of the sound; NaN for a token without a place."""


class Encoder(ABC):
    """Pictures, texts or sounds in, tokens out; it never learns."""

    name: str
    revision: str
    """Which version of that name: a commit of the Hub, a package's version, or "local" for a folder."""
    weight_hash: str
    """SHA-256, in hex, of all that decides the features: weights, preprocessing, tokeniser, options."""
    kind: str
    """What it reads: image, regions, text or audio."""
    width: int
    truncated: int = 0
    """How many of the contents encoded so far were longer than the encoder reads, and were cut."""
    registered: ClassVar[str | None] = None
    """The name of the class in the catalogue; None for one that cannot be asked for by name."""

    @abstractmethod
    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        """Tokens of each content; the result does not depend on what else is in the list."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that it was made with, each from the attribute of its name; not where and how fast it runs."""
        names = [name for name in inspect.signature(type(self)).parameters if name not in ("batch_size", "device")]
        for name in names:
            if not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__} does not keep its argument {name!r}: an encoder keeps each one in an "
                    "attribute of the same name, so that it can be made again"
                )
        return {name: getattr(self, name) for name in names}

    @property
    def spec(self) -> dict[str, Any]:
        """How to make it again (`catalogue.encoder_from_spec`); empty for an encoder that is not registered.

        The name in the catalogue, the kind of content and the options; for a class that is not meq's also its module.
        """
        if type(self).__dict__.get("registered") is None:  # of its own: a subclass is another encoder
            return {}
        spec: dict[str, Any] = {"encoder": self.registered, "kind": self.kind, "options": self.options}
        module = type(self).__module__
        if not module.startswith("meq."):
            spec["module"] = module
        try:
            return json.loads(json.dumps(spec, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{type(self).__name__}: its options must be values that JSON has: {error}") from error


def content_of(wanted: type, content: Content, encoder: str, noun: str) -> Any:
    """The content, if it is of the wanted type; else an error that says what the encoder reads."""
    if not isinstance(content, wanted):
        raise TypeError(f"{encoder} reads {noun}, got {type(content).__name__}")
    return content
