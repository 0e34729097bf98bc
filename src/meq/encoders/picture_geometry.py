"""Where the tokens of a picture lie in it: scaling and cropping of an image processor undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from meq.data.findings import DataError
from meq.encoders.pretrained import EncoderError

MAX_SCALED_PIXELS = 20_000_000
"""A thin strip whose short side is scaled up to what a model reads could fill the memory."""
NEAR = 3.0
"""Pixels of a test picture by which the measured place of a pixel may differ from the computed one."""
STRIDES = (1, 2, 4, 8, 16, 32, 64)
MAX_PREFIX = 16
"""More tokens than this without a place (class, distillation, registers) are taken for a grid not understood."""

Size = tuple[int, int]
"""Width, height."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a model sees of a picture: scaled from `original` to `scaled`, then the `window` at (left, top) of that."""

    original: Size
    scaled: Size
    left: int
    top: int
    window: Size

    def boxes(self, rows: int, columns: int) -> Float[Tensor, "N 4"]:
        """The cells of a grid over the window, in pixels of the original; NaN for a cell outside of the picture."""
        row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
        cells = torch.stack([column, row, column + 1, row + 1], dim=1).double()
        cell = torch.tensor([self.window[0] / columns, self.window[1] / rows]).double().repeat(2)
        scale = torch.tensor([self.original[0] / self.scaled[0], self.original[1] / self.scaled[1]]).double().repeat(2)
        corners = (cells * cell + torch.tensor([self.left, self.top]).repeat(2)) * scale
        boxes = corners.clamp(min=0).minimum(torch.tensor(self.original).repeat(2))
        inside = (boxes[:, 2:] > boxes[:, :2]).all(1, keepdim=True)
        return boxes.where(inside, torch.nan).float()

    def check(self, what: str) -> None:
        """Refuse a picture of a shape that scaling would blow up."""
        width, height = self.scaled
        if width * height > MAX_SCALED_PIXELS:
            raise DataError(
                f"{what}: {self.original[0]:,} x {self.original[1]:,} pixels, which the encoder would scale to "
                f"{width:,} x {height:,}; the picture is too long and thin: cut it"
            )


def view_of(processor: Any, original: Size) -> View:
    """The view of a picture of that size, from the processor's settings: scaling first, then a centre crop."""
    scaled = _scaled(processor, original) if getattr(processor, "do_resize", False) else original
    window = scaled
    if getattr(processor, "do_center_crop", False):
        window = int(processor.crop_size["width"]), int(processor.crop_size["height"])
    elif _crops_by_share(processor):
        window = (int(processor.size["shortest_edge"]),) * 2
    # Floor division below zero too: a window larger than the picture is filled up as the processor does.
    left, top = ((scaled[axis] - window[axis]) // 2 for axis in (0, 1))
    return View(original=original, scaled=scaled, left=left, top=top, window=window)


def grid_of(count: int, window: Size, *, patch: Size | None, name: str) -> tuple[int, int, int]:
    """Tokens without a place, rows and columns of a model's output of `count` tokens; places come last."""
    if patch is not None:
        columns, rows = window[0] // patch[0], window[1] // patch[1]
        if 0 <= count - rows * columns <= MAX_PREFIX:
            return count - rows * columns, rows, columns
    for stride in STRIDES:
        columns, rows = -(-window[0] // stride), -(-window[1] // stride)
        if rows * columns == count:
            return 0, rows, columns
    raise EncoderError(
        f"{name}: where its {count} tokens of a {window[0]} x {window[1]} picture lie is not known; they are neither "
        "the patches of its config nor a grid"
    )


def check_geometry(processor: Any, name: str) -> None:
    """Send test pictures through the processor: its pixels must come from where `view_of` says that they do."""
    for size in ((240, 160), (160, 240)):
        view = view_of(processor, size)
        black, white = (processed(processor, Image.new("RGB", size, colour)) for colour in ("black", "white"))
        across = np.broadcast_to(np.linspace(0, 255, size[0])[None, :], size[::-1])
        down = np.broadcast_to(np.linspace(0, 255, size[1])[:, None], size[::-1])
        ramp = processed(processor, Image.fromarray(np.stack([across, down, down], axis=2).round().astype(np.uint8)))
        if ramp.shape[1:] != view.window[::-1]:
            raise EncoderError(
                f"{name}: its preprocessing is not scaling and a centre crop, so its tokens have no place"
            )
        # Zeros around a small picture are the same in black and in white: they have no place to check.
        share = (ramp - black) / (white - black)
        boxes = view.boxes(view.window[1], view.window[0]).reshape(*view.window[::-1], 4)
        for channel, extent in ((0, size[0]), (1, size[1])):
            middle = (boxes[..., channel] + boxes[..., channel + 2]) / 2
            off = (share[channel] * (extent - 1) + 0.5 - middle).abs()
            if not bool((off < NEAR)[off.isfinite()].all()) or not bool(off.isfinite().any()):
                raise EncoderError(f"{name}: its preprocessing moves pixels in a way that is not understood")


def processed(processor: Any, image: Image.Image, *, whole: bool = False) -> Float[Tensor, "C H W"]:
    """The picture as the model reads it; `whole` leaves scaling and cropping out."""
    steps = ("do_resize", "do_center_crop") if whole else ()
    left_out = {step: False for step in steps if getattr(processor, step, None)}
    return processor(images=[image], return_tensors="pt", **left_out)["pixel_values"][0].float()


def _scaled(processor: Any, original: Size) -> Size:
    size = processor.size
    if "shortest_edge" in size:
        short = int(size["shortest_edge"])
        if _crops_by_share(processor):
            return _by_short_side(original, int(short / processor.crop_pct))
        return (short, short) if hasattr(processor, "crop_pct") else _by_short_side(original, short)
    if "height" in size and "width" in size:
        return int(size["width"]), int(size["height"])
    raise EncoderError(f"an image processor that scales to {dict(size)} is not understood: its tokens have no place")


def _by_short_side(original: Size, short: int) -> Size:
    width, height = original
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def _crops_by_share(processor: Any) -> bool:
    """ConvNeXT's processors scale to size / crop_pct and crop to size; from 384 pixels on they squeeze instead."""
    return hasattr(processor, "crop_pct") and int(processor.size.get("shortest_edge", 384)) < 384
