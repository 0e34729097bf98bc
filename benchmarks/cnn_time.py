"""How long the offline CNN takes for a picture, from its pixels to tokens.

    python benchmarks/cnn_time.py

encodes pictures of the size of a photograph with EfficientNet-Lite0, whose weights come with `meq[offline]`, on one
thread, and writes `benchmarks/results/speed_cnn_time.json` in a minute.
"""

from __future__ import annotations

import numpy as np
import speed
import torch
from PIL import Image
from speed import Line, cpu_seconds, quartiles

from meq.data.content import DrawnPicture
from meq.encoders.catalogue import make_encoder

PICTURES, SIZE = 16, (500, 375)


def pictures() -> list[DrawnPicture]:
    noise = np.random.default_rng(0)
    drawn = [noise.integers(0, 256, (SIZE[1] // 25, SIZE[0] // 25, 3), dtype=np.uint8) for _ in range(PICTURES)]
    images = [Image.fromarray(colours).resize(SIZE) for colours in drawn]
    return [DrawnPicture(f"{row}", lambda image=image: image) for row, image in enumerate(images)]


def measure(rounds: int) -> list[Line]:
    encoder, shown = make_encoder("cnn", "image"), pictures()
    pixels = torch.randn(PICTURES, 3, 224, 224)

    def network() -> None:
        with torch.no_grad():
            for batch in pixels.split(4):
                encoder.model(batch)

    for call in (network, lambda: encoder(shown)):
        call()
    alone = quartiles([1000 * cpu_seconds(network) / PICTURES for _ in range(rounds)])
    whole = quartiles([1000 * cpu_seconds(lambda: encoder(shown)) / PICTURES for _ in range(rounds)])
    return [
        Line(number=9, what="the offline CNN, a picture of 500 x 375 to tokens", limit=30.0, unit="ms", **whole),
        Line(number=9, what="its network alone, four pictures at once", limit=None, unit="ms", **alone),
    ]


if __name__ == "__main__":
    speed.run_lines("How long the offline CNN takes for a picture.", "cnn_time", 15, measure)
