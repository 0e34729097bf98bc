"""EfficientNet-Lite0 without its classifier: a picture of 224 x 224 pixels becomes 7 x 7 cells of 1280 numbers.

Written out here so that the weights can be read as tensors and no other package's code runs. Convolutions pad as in
TensorFlow, where the network was trained: to whole strides, the odd pixel right and below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

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


class EfficientNetLite(nn.Module):
    """Names of the parts are those of the published weights, without the underscores."""

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
        x = F.relu6(self.bn0(self.conv_stem(pixels)))
        return F.relu6(self.bn1(self.conv_head(self.blocks(x))))

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
        if self.widens:
            self.expand_conv = nn.Conv2d(before, inside, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(inside, eps=EPSILON)
        self.depthwise_conv = SamePadded(inside, inside, kernel, stride=stride, groups=inside, bias=False)
        self.bn1 = nn.BatchNorm2d(inside, eps=EPSILON)
        self.project_conv = nn.Conv2d(inside, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=EPSILON)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D R S"]:
        y = F.relu6(self.bn0(self.expand_conv(x))) if self.widens else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)))
        y = self.bn2(self.project_conv(y))
        return x + y if self.keeps_shape else y


class SamePadded(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) rows and columns."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D R S"]:
        down, right = (
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        )
        padded = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        return super().forward(padded)


def normalised(pixels: Float[Tensor, "B H W 3"]) -> Float[Tensor, "B 3 H W"]:
    """Values from 0 to 255 as the network was trained on: (x - 127) / 128."""
    return ((pixels - 127) / 128).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
