"""Run as a program: a run whose encoder has weights of its own is scored and asked on a device that is not the CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from second_device import DEVICE, install

LIBRARY = install()

import meq  # noqa: E402
from meq.encoders import Encoder, register_encoder  # noqa: E402
from meq.encoders.contract import Tokens  # noqa: E402

USED: list[str] = []
"""Where the encoder has computed."""


@register_encoder("weighed-letters")
class WeighedLetters(Encoder):
    """One token per letter, by a matrix that lies on the device."""

    kind, revision, name, width = "text", "1", "weighed-letters-1", 8

    def __init__(self, *, device: str = "cpu") -> None:
        self.weight = torch.randn(26, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.weight_hash = sha256(b"weighed letters").hexdigest()

    def __call__(self, contents: Sequence[Any]) -> list[Tokens]:
        USED.append(str(self.weight.device))
        return [self._tokens(str(content).lower()) for content in contents]

    def _tokens(self, text: str) -> Tokens:
        codes = torch.tensor([(ord(letter) - ord("a")) % 26 for letter in text])
        letters = torch.nn.functional.one_hot(codes, 26).float().to(self.weight.device)
        return Tokens(features=(letters @ self.weight).cpu())


def main(folder: Path) -> None:
    words = ["red", "green", "blue", "grey", "pink"]
    rows = [
        {"word": words[k % 5], "size": float(k % 7), "y": "yes" if k % 5 < 2 else "no", "part": ("train", "dev")[k % 2]}
        for k in range(48)
    ]
    small: dict[str, Any] = {"dim": 8, "heads": 2, "steps": 2, "epochs": 1, "radius_samples": 0, "monitor_samples": 4}
    asked = {"text": "word", "vector": "size", "label": "y", "split": "part", "text_encoder": "weighed-letters"}
    meq.train(rows, **asked, **small, device="cpu", out=folder / "run")
    new = [{"word": "orange", "size": 3.0}, {"word": "violet", "size": 1.0}]
    found = []
    for device in ("cpu", DEVICE):
        USED.clear()
        run = meq.load(folder / "run")
        scores, answers = run.evaluate(new_rows(rows), device=device), run.predict(new, device=device)
        assert set(USED) == {device}, USED
        logits = [answer.logits.cpu() for answer in answers]
        assert scores.worth is not None
        found.append((scores.splits[0].metrics["accuracy"], torch.stack(logits)))
    (there, mine), (here, theirs) = found
    assert there == here
    torch.testing.assert_close(mine, theirs)  # attention is another kernel there
    print("the same")


def new_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Words that are in no store: they have to be encoded."""
    return [{**row, "word": row["word"][::-1]} for row in rows]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
