"""Pictures by any image model of transformers: one token per patch or cell, each with its box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from meq.core.options import checked_options
from meq.data.content import Content, DrawnPicture, Picture
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.picture_geometry import Size, check_geometry, grid_of, processed, view_of
from meq.encoders.pretrained import EncoderError, batches, check_complete, find, load_model, load_processor, weight_hash

CLIP = "openai/clip-vit-base-patch32"


@checked_options
class TransformerImage(Encoder):
    """The last hidden state of a frozen image model, by its name on the Hub or its folder.

    A class token comes first where the model has one. The picture is prepared by the model's own processor, with
    Pillow, so that features do not depend on what else is installed. Of a model for pictures and texts, the part for
    pictures is used.
    """

    kind = "image"

    def __init__(
        self, model: str = CLIP, *, revision: str | None = None, batch_size: int = 32, device: str = "cpu"
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"TransformerImage: batch_size must be at least 1, got {batch_size}")
        source = find(model, kind=self.kind, revision=revision)
        whole, missing = load_model(source)
        self.model = _part_for_pictures(whole, source.name)
        self.has_pooler = check_complete(source, self.model, whole, missing)
        self.model.to(device)
        self.processor = load_processor(source, "AutoImageProcessor", {"backend": "pil"})
        check_geometry(self.processor, source.name)
        self.name, self.revision = source.name, source.revision
        self.weight_hash = weight_hash(self.model, source.folder, self.kind)
        self.batch_size, self.device = batch_size, torch.device(device)
        # Measured, since configs name the width differently; and an unknown grid is better refused now than later.
        self.width = int(self._encode([DrawnPicture("blank", lambda: Image.new("RGB", (64, 64)))])[0].features.shape[1])

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [tokens for batch in batches(contents, self.batch_size) for tokens in self._encode(batch)]

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]:
        """One vector per picture: the model's own summary, or the mean of its tokens where it has none.

        Pictures have the window's size already, and are neither scaled nor cropped.
        """
        outputs = [self._forward(self._prepared(batch, whole=True)) for batch in batches(images, self.batch_size)]
        return torch.cat([_summary(output, self.has_pooler) for output in outputs]).float().cpu()

    @property
    def window(self) -> Size:
        """Width and height of what the model reads, for a square picture."""
        return view_of(self.processor, (512, 512)).window

    def _encode(self, contents: Sequence[Content]) -> list[Tokens]:
        pictures = [opened(content, self.name, side=self._side()) for content in contents]
        images = [image for image, _ in pictures]
        views = [replace(view_of(self.processor, image.size), original=whole) for image, whole in pictures]
        for view, content in zip(views, contents, strict=True):
            view.check(str(content))
        # Without a crop, pictures of different forms stay so, and cannot share a batch.
        if len({view.window for view in views}) == 1:
            hidden = list(_tokens(self._forward(self._prepared(images))))
        else:
            hidden = [_tokens(self._forward(self._prepared([image])))[0] for image in images]
        made = []
        for features, view in zip(hidden, views, strict=True):
            prefix, rows, columns = grid_of(len(features), view.window, patch=_patch(self.model), name=self.name)
            boxes = torch.cat([torch.full((prefix, 4), torch.nan), view.boxes(rows, columns)])
            made.append(Tokens(features=features.float().cpu().clone(), boxes=boxes))  # not a view that keeps the batch
        return made

    def _side(self) -> int | None:
        """How many pixels of a picture's shorter side are read; None where pictures are read as they are."""
        return max(view_of(self.processor, (512, 512)).scaled) if getattr(self.processor, "do_resize", False) else None

    def _prepared(self, images: Sequence[Image.Image], *, whole: bool = False) -> Float[Tensor, "B C H W"]:
        return torch.stack([processed(self.processor, image, whole=whole) for image in images]).to(self.device)

    @torch.no_grad()
    def _forward(self, pixels: Float[Tensor, "B C H W"]) -> Any:
        return self.model(pixel_values=pixels)


def _part_for_pictures(model: nn.Module, name: str) -> nn.Module:
    part = getattr(model, "vision_model", model)
    reads = getattr(part, "main_input_name", "nothing that is known")
    if reads != "pixel_values":
        raise EncoderError(f"{name} is a {type(model).__name__}, which reads {reads}: it is no encoder of pictures")
    return part


def opened(content: Content, name: str, *, side: int | None) -> tuple[Image.Image, Size]:
    """The picture, of which `side` pixels of the shorter side are needed or all, and the size of the whole."""
    if not isinstance(content, Picture):
        raise TypeError(f"{name} reads pictures, got {type(content).__name__}")
    if side is not None:
        image, whole = content.open_scaled(side)
        return image.convert("RGB"), whole
    image = content.open().convert("RGB")
    return image, image.size


def _tokens(output: Any) -> Float[Tensor, "B N W"]:
    """The last hidden state; the cells of a convolutional network are its tokens, row by row."""
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(2).transpose(1, 2) if hidden.ndim == 4 else hidden


def _summary(output: Any, has_pooler: bool) -> Float[Tensor, "B W"]:
    pooled = getattr(output, "pooler_output", None)
    if pooled is None or not has_pooler:
        return _tokens(output).mean(1)
    return pooled.flatten(1)


def _patch(model: nn.Module) -> Size | None:
    """Width and height of a patch in pixels, if the model's config tells."""
    size = getattr(model.config, "patch_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return int(size[1]), int(size[0])
    return None
