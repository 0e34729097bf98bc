"""Pictures, and regions of them, by any image model of transformers: one token per patch, cell or box, with its place.

Each token says where in the original picture it lies: the scaling and cropping of the model's own image processor are
undone, and checked on test pictures when the encoder is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from meq.data.content import Content, DrawnPicture, Picture, Regions, Size
from meq.data.findings import DataError
from meq.encoders.catalogue import CLIP, TRANSFORMERS, EncoderError
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.pretrained import batches, find, load_part, load_processor, weight_hash
from meq.options import checked_options, whole_number

MAX_SCALED_PIXELS = 20_000_000
"""A thin strip whose short side is scaled up to what a model reads could fill the memory."""
NEAR = 3.0
"""Pixels of a test picture by which the measured place of a pixel may differ from the computed one."""
STRIDES = (1, 2, 4, 8, 16, 32, 64)
MAX_PREFIX = 16
"""More tokens than this without a place (class, distillation, registers) are taken for a grid not understood."""

Box = tuple[float, float, float, float]
CUTTING = "squeezed, bicubic, v1"
"""Part of the hash: another way of cutting out makes other features."""
SMALLEST = 1.0
"""Pixels that a cut-out has at least in width and in height; a box as thin as a line is widened to it."""


@checked_options
class TransformerImage(Encoder):
    """The last hidden state of a frozen image model, by its name on the Hub or its folder.

    A class token comes first where the model has one. The picture is prepared by the model's own processor, with
    Pillow, so that features do not depend on what else is installed. Of a model for pictures and texts, the part for
    pictures is used.
    """

    registered = TRANSFORMERS
    kind = "image"

    def __init__(
        self, model: str = CLIP, *, revision: str | None = None, batch_size: int = 32, device: str = "cpu"
    ) -> None:
        self.batch_size, self.device = whole_number("TransformerImage: batch_size", batch_size), torch.device(device)
        source = find(model, kind=self.kind, revision=revision)
        self.network, self.has_pooler = load_part(source, "vision_model", reads=("pixel_values",), noun="pictures")
        self.network.to(device)
        self.processor = load_processor(source, "AutoImageProcessor", {"backend": "pil"})
        check_geometry(self.processor, source.name)
        self.name = self.model = source.name
        self.revision = source.revision
        self.weight_hash = weight_hash(self.network, source.folder, self.kind)
        # Measured, since configs name the width differently; and an unknown grid is better refused now than later.
        self.width = int(self._encode([DrawnPicture("blank", lambda: Image.new("RGB", (64, 64)))])[0].features.shape[1])

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [tokens for batch in batches(contents, self.batch_size) for tokens in self._encode(batch)]

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]:
        """One vector per picture: the model's own summary, or the mean of its tokens where it has none.

        Pictures have the window's size already, and are neither scaled nor cropped.
        """
        summaries = []
        for batch in batches(images, self.batch_size):
            output = self._forward(self._prepared(batch, whole=True))
            pooled = getattr(output, "pooler_output", None) if self.has_pooler else None
            summaries.append(tokens_of(output).mean(1) if pooled is None else pooled.flatten(1))
        return torch.cat(summaries).float().cpu()

    @property
    def window(self) -> Size:
        """Width and height of what the model reads, for a square picture."""
        return view_of(self.processor, (512, 512)).window

    def _encode(self, contents: Sequence[Content]) -> list[Tokens]:
        # pixels of a picture's shorter side that are read; None where pictures are read as they are
        side = max(view_of(self.processor, (512, 512)).scaled) if getattr(self.processor, "do_resize", False) else None
        pictures = [opened(content, self.name, side=side) for content in contents]
        images = [image for image, _ in pictures]
        views = [replace(view_of(self.processor, image.size), original=whole) for image, whole in pictures]
        for view, content in zip(views, contents, strict=True):
            view.check(str(content))
        # Without a crop, pictures of different forms stay so, and cannot share a batch.
        if len({view.window for view in views}) == 1:
            hidden = list(tokens_of(self._forward(self._prepared(images))))
        else:
            hidden = [tokens_of(self._forward(self._prepared([image])))[0] for image in images]
        made = []
        for features, view in zip(hidden, views, strict=True):
            prefix, rows, columns = grid_of(len(features), view.window, patch=_patch(self.network), name=self.name)
            boxes = torch.cat([torch.full((prefix, 4), torch.nan), view.boxes(rows, columns)])
            made.append(Tokens(features=features.float().cpu().clone(), boxes=boxes))  # not a view that keeps the batch
        return made

    def _prepared(self, images: Sequence[Image.Image], *, whole: bool = False) -> Float[Tensor, "B C H W"]:
        return torch.stack([processed(self.processor, image, whole=whole) for image in images]).to(self.device)

    @torch.no_grad()
    def _forward(self, pixels: Float[Tensor, "B C H W"]) -> Any:
        return self.network(pixel_values=pixels)


def opened(content: Content, name: str, *, side: int | None) -> tuple[Image.Image, Size]:
    """The picture, of which `side` pixels of the shorter side are needed or all, and the size of the whole."""
    picture: Picture = content_of(Picture, content, name, "pictures")
    if side is not None:
        image, whole = picture.open_scaled(side)
        return image.convert("RGB"), whole
    image = picture.open().convert("RGB")
    return image, image.size


def tokens_of(output: Any) -> Float[Tensor, "B N W"]:
    """The last hidden state; the cells of a convolutional network are its tokens, row by row."""
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(2).transpose(1, 2) if hidden.ndim == 4 else hidden


def _patch(model: nn.Module) -> Size | None:
    """Width and height of a patch in pixels, if the model's config tells."""
    size = getattr(model.config, "patch_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return int(size[1]), int(size[0])
    return None


# -- regions of pictures -----------------------------------------------------------------------------------------------


class Summarises(Protocol):
    """A picture encoder that can also give one vector per picture."""

    name: str
    revision: str
    weight_hash: str
    width: int

    @property
    def spec(self) -> dict[str, Any]: ...

    @property
    def window(self) -> Size: ...

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]: ...

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]: ...


@checked_options
class PictureRegions(Encoder):
    """The picture's own tokens, then one per region, each with its box: the paper's "image + RoI features".

    Without `patches`, as older runs have it, the whole picture is one token. A region is squeezed into what the encoder
    reads, whatever its form: a centre crop would cut heads and feet off people, who are taller than wide.
    """

    kind = "regions"

    def __init__(self, encoder: Summarises, *, patches: bool = True) -> None:
        if not hasattr(encoder, "pooled"):
            raise EncoderError(f"{getattr(encoder, 'name', encoder)} gives no summary of a picture, which regions need")
        self.encoder, self.patches = encoder, patches
        self.name, self.revision = f"{encoder.name} {'patches and ' if patches else ''}regions", encoder.revision
        self.weight_hash = hashlib.sha256(f"{encoder.weight_hash} {CUTTING}".encode()).hexdigest()
        summed = int(encoder.pooled([Image.new("RGB", encoder.window)]).shape[1])
        self.width = max(summed, encoder.width) if patches else summed

    @property
    def spec(self) -> dict[str, Any]:
        if not self.encoder.spec:
            return {}
        return {**self.encoder.spec, "kind": self.kind, **({"patches": True} if self.patches else {})}

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        boxes = []
        cuts: list[Image.Image] = []
        regions_of: list[Regions] = [content_of(Regions, each, self.name, "regions of pictures") for each in contents]
        for regions in regions_of:
            image = regions.picture.open().convert("RGB")
            whole = [] if self.patches else [(0.0, 0.0, float(image.width), float(image.height))]
            places = [*whole, *_inside(regions, image.size)]
            for left, top, right, bottom in places:
                (left, right), (top, bottom) = _widened(left, right, image.width), _widened(top, bottom, image.height)
                box = (left, top, right, bottom)
                cuts.append(image.resize(self.encoder.window, Image.Resampling.BICUBIC, box=box))
            boxes.append(torch.tensor(places).reshape(-1, 4))
        if not contents:
            return []
        summed = self.encoder.pooled(cuts) if cuts else torch.zeros(0, self.width)
        parts = [self._filled(each) for each in summed.split([len(places) for places in boxes])]
        if not self.patches:
            return [Tokens(features=each, boxes=where) for each, where in zip(parts, boxes, strict=True)]
        shown = self.encoder([regions.picture for regions in regions_of])
        made = []
        for picture, cut, where in zip(shown, parts, boxes, strict=True):
            nowhere = torch.full((len(picture.features), 4), torch.nan)
            boxes_of = nowhere if picture.boxes is None else picture.boxes
            features = torch.cat([self._filled(picture.features), cut])
            made.append(Tokens(features=features, boxes=torch.cat([boxes_of, where])))
        return made

    def _filled(self, features: Float[Tensor, "N W"]) -> Float[Tensor, "N D"]:
        """Zeros where an encoder says more of a patch than of a whole picture, such as its place."""
        return torch.nn.functional.pad(features, (0, self.width - features.shape[1]))


def _inside(content: Regions, size: Size) -> list[Box]:
    """The boxes, cut off at the picture's border."""
    width, height = size
    inside = []
    for place, (left, top, right, bottom) in enumerate(content.boxes):
        if not all(map(math.isfinite, (left, top, right, bottom))) or right < left or bottom < top:
            raise DataError(
                f"{content.picture}: box {place} is {content.boxes[place]}; left, top, right, bottom are needed"
            )
        if right < 0 or bottom < 0 or left > width or top > height:
            raise DataError(
                f"{content.picture}: box {place}, {content.boxes[place]}, lies outside of {width} x {height}"
            )
        inside.append((max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))))
    return inside


def _widened(low: float, high: float, extent: int) -> tuple[float, float]:
    """The interval, or one of the smallest length around it that stays inside."""
    if high - low >= SMALLEST:
        return low, high
    low = min(max((low + high - SMALLEST) / 2, 0.0), extent - SMALLEST)
    return low, low + SMALLEST


# -- where the tokens of a picture lie in it ---------------------------------------------------------------------------


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
