"""What a feature store saves: a shuffled epoch read from it, against encoding the pictures again.

    python benchmarks/feature_store.py

fills a store in a temporary folder (about 1 GB) with random features of the sizes of CLIP-B/32 and BERT, reads shuffled
epochs from it as training does, times a randomly initialised model of CLIP-B/32's size on pictures of a photograph's
size, and a training step with its batch from the store. Writes `benchmarks/results/feature_store.json` in some minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from PIL import Image
from torch import Tensor, nn

import meq
from meq.data.content import Content, DrawnPicture, PictureFile
from meq.data.contract import IMAGE, TEXT, Batch, DataSet, Example, Rows, collate
from meq.data.metrics import ACCURACY
from meq.encoders import Encoder, EncoderError, Tokens, encode
from meq.studies.sized_encoders import SIZES, random_encoder

PAIRS = 10_000
"""Each a picture and a text of its own: twice as many items."""
IMAGE_TOKENS, TEXT_TOKENS, WIDTH = 50, 32, 768
BATCH = 32
PICTURES, PICTURE_SIZE = 200, (500, 375)
DIM, HEADS, DEPTH, STEPS = 256, 8, 10, 12
CLASSES = 3


class RandomFeatures(Encoder):
    """As many random features as a real encoder would give; texts have from 4 tokens to the most."""

    revision, weight_hash, width = "v1", "random", WIDTH

    def __init__(self, kind: str) -> None:
        self.kind, self.name = kind, f"random-{kind}"
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._tokens() for _ in contents]

    def _tokens(self) -> Tokens:
        count = IMAGE_TOKENS
        if self.kind == "text":
            count = int(torch.randint(4, TEXT_TOKENS + 1, (), generator=self.generator))
        x = torch.randn(count, WIDTH, generator=self.generator)
        if self.kind == "text":
            return Tokens(features=x, spans=torch.zeros(count, 2, dtype=torch.long))
        return Tokens(features=x, boxes=torch.zeros(count, 4))


def pairs() -> DataSet:
    """As many different pictures as pairs, and as many texts; what is in them does not matter here."""

    def make(row: int) -> Example:
        picture = DrawnPicture(f"{row}", partial(Image.new, "RGB", (1, 1), (row // 256, row % 256, 0)))
        return Example(id=f"{row}", content={"image": picture, "text": f"{row}"}, target=torch.tensor(row % CLASSES))

    return DataSet(
        name="random",
        splits={"train": Rows(range(PAIRS), make)},
        modalities={"image": IMAGE, "text": TEXT},
        labels=tuple(map(str, range(CLASSES))),
        head="classes",
        metric=ACCURACY,
    )


def stored(folder: Path) -> DataSet:
    """Opened anew, as a training run would."""
    return encode(pairs(), {kind: RandomFeatures(kind) for kind in ("image", "text")}, store=folder)


def batches(data: DataSet, seed: int) -> Iterator[Batch]:
    """A shuffled epoch, as `fit` goes through one."""
    train, order = data.splits["train"], torch.randperm(PAIRS, generator=torch.Generator().manual_seed(seed)).tolist()
    for start in range(0, PAIRS - BATCH + 1, BATCH):
        yield collate([train[row] for row in order[start : start + BATCH]], data.widths)


def timed(work: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def read_alone(data: DataSet, seed: int) -> None:
    train, order = data.splits["train"], torch.randperm(PAIRS, generator=torch.Generator().manual_seed(seed)).tolist()
    for row in order:
        _ = train[row]


def read_in_batches(data: DataSet, seed: int) -> None:
    for _ in batches(data, seed):
        pass


def reading(folder: Path, rounds: int) -> dict[str, Any]:
    """Examples per second. A first epoch, in a store just opened, checks every content against its checksum."""
    measured: dict[str, list[dict[str, float]]] = {}
    for seed in range(rounds):
        for how, epoch in (("alone", read_alone), ("in batches", read_in_batches)):
            data = stored(folder)
            for which in ("first", "later"):
                seconds = timed(partial(epoch, data, seed))
                rates = {name.replace("seconds", "per_second"): PAIRS / value for name, value in seconds.items()}
                measured.setdefault(f"{which}, {how}", []).append(rates)
    return {name: medians(rates) for name, rates in measured.items()}


def medians(measured: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in measured) for name in measured[0]}


def encoding(folder: Path, rounds: int) -> dict[str, Any]:
    """Pictures per second from file to tokens: decoding, scaling, and a model of CLIP-B/32's size."""
    folder.mkdir()
    for number in range(PICTURES):
        pixels = np.random.default_rng(number).integers(
            0, 256, (PICTURE_SIZE[1] // 5, PICTURE_SIZE[0] // 5, 3), np.uint8
        )
        Image.fromarray(pixels).resize(PICTURE_SIZE, Image.Resampling.BICUBIC).save(
            folder / f"{number}.jpg", quality=90
        )
    pictures = [PictureFile(folder / f"{number}.jpg", folder) for number in range(PICTURES)]
    model, through = clip_sized()
    encode_pictures(model, pictures[:BATCH])  # warms up
    measured = [timed(lambda: encode_pictures(model, pictures)) for _ in range(rounds)]
    rates = [
        {name.replace("seconds", "per_second"): PICTURES / value for name, value in one.items()} for one in measured
    ]
    return {"through": through, "pictures": PICTURES, **medians(rates)}


@torch.no_grad()
def encode_pictures(model: nn.Module, pictures: Sequence[PictureFile]) -> None:
    for start in range(0, len(pictures), BATCH):
        opened = [
            picture.open().resize((224, 224), Image.Resampling.BICUBIC) for picture in pictures[start : start + BATCH]
        ]
        pixels = torch.stack([torch.from_numpy(np.asarray(image, np.float32)).permute(2, 0, 1) for image in opened])
        model(pixels / 127.5 - 1)


def clip_sized() -> tuple[nn.Module, str]:
    torch.manual_seed(0)
    try:
        return random_encoder(SIZES["clip"]), "transformers"
    except EncoderError:
        return PlainVision().eval(), "a module of that size in plain torch"


class PlainVision(nn.Module):
    """Patches of 32 pixels, a class token, twelve layers: the work of CLIP-B/32."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 32, stride=32, bias=False)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patches(pixels).flatten(2).mT
        return self.layers(torch.cat([self.first.expand(len(tokens), -1, -1), tokens], dim=1))


def waiting(folder: Path) -> dict[str, Any]:
    """The share of a training step that goes into its batch, for the model and for the cheapest of its baselines."""
    data = stored(folder)
    torch.manual_seed(0)
    penalties = (meq.JacobianRange(weight=0.5), meq.ResidualCorrection(weight=0.3))
    equilibrium = meq.MutualEquilibrium(data.widths, CLASSES, DIM, heads=HEADS, steps=DEPTH)
    return {
        **{"dim": DIM, "depth": DEPTH, "batch": BATCH, "steps": STEPS},
        "equilibrium": share_of_steps(equilibrium, meq.Objective(penalties=penalties), data),
        "concat": share_of_steps(meq.Concat(data.widths, CLASSES, DIM), meq.Objective(penalties=()), data),
    }


def share_of_steps(model: meq.FusionModel, objective: meq.Objective, data: DataSet) -> dict[str, float]:
    """CPU time; `fit` reads and collates a batch between two updates, in the same process, and so does this."""
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    coming, seeds = batches(data, 0), torch.arange(BATCH)
    shares, seconds = [], []
    for step in range(STEPS + 1):
        begin = time.process_time()
        batch = next(coming)
        ready = time.process_time()
        output = model(batch.features, batch.masks, seeds=seeds)
        objective(model, output, batch.target, seeds=seeds).total.backward()
        optimiser.step()
        optimiser.zero_grad()
        end = time.process_time()
        if step:  # the first one warms up
            shares.append((ready - begin) / (end - begin))
            seconds.append(end - begin)
    lower, middle, upper = statistics.quantiles(shares, n=4, method="inclusive")
    return {
        "step_cpu_seconds": statistics.median(seconds),
        "share_median": middle,
        "share_lower_quartile": lower,
        "share_upper_quartile": upper,
    }


def everything(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        store, pictures = Path(place) / "store", Path(place) / "pictures"
        filled = timed(lambda: stored(store))
        files = list(store.rglob("*.safetensors"))
        size = {"items": 2 * PAIRS, "shards": len(files), "megabytes": sum(file.stat().st_size for file in files) / 1e6}
        opened = timed(lambda: stored(store))
        return {
            "store": {**size, "fill_cpu_seconds": filled["cpu_seconds"], "open_cpu_seconds": opened["cpu_seconds"]},
            "tokens": {"image": IMAGE_TOKENS, "text": TEXT_TOKENS, "width": WIDTH},
            "reading": reading(store, rounds),
            "encoding": encoding(pictures, rounds),
            "waiting": waiting(store),
        }


if __name__ == "__main__":
    record.run("A shuffled epoch from a feature store, against encoding again.", "feature_store", 3, everything)
