"""Encoders trained along with the equilibrium: a small CNN, a word embedding, and the two in mutual equilibrium.

A noisy picture shows a bar that lies or stands, a caption says in one of many words that it is warm or cold. Asked for
are both: the picture alone, or the caption alone, is right half of the time at best. The whole network is an ordinary
module, and `meq.fit` trains all of it on ordinary batches.

    python examples/end_to_end.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import meq

SIDE, WORDS = 8, 12
"""Pixels of a picture's side; words that captions are made of, every second one a warm one."""


class Network(nn.Module):
    """Pixels and word numbers in, the answer out; all of it learns."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(8, width, 2, stride=2), nn.GELU()
        )
        self.words = nn.Embedding(WORDS, width)
        self.fusion = meq.MutualEquilibrium({"picture": width, "caption": width}, classes=4, dim=32, heads=2, steps=4)

    def forward(self, batch: tuple[Tensor, Tensor]) -> meq.Output:
        pixels, words = batch
        tokens = self.cnn(pixels).flatten(2).mT  # B 4 W, one token per quarter of the picture
        return self.fusion({"picture": tokens, "caption": self.words(words)})


def draw(count: int, generator: torch.Generator) -> TensorDataset:
    """Pictures, captions of three words, and the answers 2 * stands + warm."""
    lines = 0.5 * torch.randn(count, SIDE, SIDE, generator=generator)
    row = torch.randint(0, SIDE, (count,), generator=generator)
    lines[torch.arange(count), row] += 2
    stands, warm = (torch.randint(0, 2, (count,), generator=generator) for _ in range(2))
    pixels = torch.where(stands.bool()[:, None, None], lines.mT, lines)[:, None]
    words = 2 * torch.randint(0, WORDS // 2, (count, 3), generator=generator) + warm[:, None]
    return TensorDataset(pixels, words, 2 * stands + warm)


def together(samples: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """A batch: what the network is called with, and the target."""
    pixels, words, target = map(torch.stack, zip(*samples, strict=True))
    return (pixels, words), target


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    train = DataLoader(draw(256, generator), batch_size=32, shuffle=True, collate_fn=together)
    dev = DataLoader(draw(128, generator), batch_size=128, collate_fn=together)
    network = Network()
    fitted = meq.fit(
        network,
        train,
        dev,
        objective=meq.Objective(penalties=(meq.ResidualCorrection(weight=0.1),)),  # on the equilibrium in the middle
        epochs=6,
        learning_rate=5e-3,
        metric="accuracy",
        progress=lambda epoch: print(f"epoch {epoch.epoch}: loss {epoch.train_loss:.3f}, accuracy {epoch.score:.3f}"),
    )
    print(fitted)
    print(f"right answers on new pictures: {fitted.best.score:.0%}; either alone is right half of the time at best")
    print(network(next(iter(dev))[0]))


if __name__ == "__main__":
    main()
