"""Maps that show what answers rest on beat random ones; constant and wrong ones do not. Shares add up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import meq
from meq.analysis import removal
from meq.analysis.attribution import DEFAULT_METHOD
from meq.analysis.removal import as_shares, measure_faithfulness, modality_effects
from meq.data.content import PictureFile
from meq.encoders.builtin import Patches

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "snli_ve"
WIDTHS = {"image": 4, "text": 3}


def model(**options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    return meq.MutualEquilibrium(WIDTHS, 3, 16, **{"heads": 2, "steps": 3, **options}).eval()


def batch(size: int = 24, seed: int = 0) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    features = {
        "image": torch.randn(size, 10, 4, generator=generator),
        "text": torch.randn(size, 5, 3, generator=generator),
    }
    lengths = torch.randint(1, 6, (size,), generator=generator)
    return SimpleNamespace(features=features, masks={"text": torch.arange(5).expand(size, 5) < lengths[:, None]})


class _OneToken(torch.nn.Module):
    """Answers by the one picture token whose first number is large; the rest is noise."""

    head_kind, steps, solver = "classes", 1, None

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> SimpleNamespace:
        x = features["image"]
        real = (masks or {}).get("image", torch.ones(x.shape[:2], dtype=torch.bool))
        seen = (x[..., 0] * real).amax(1)
        return SimpleNamespace(logits=torch.stack([seen, 2 - seen], dim=1))


def maps_of(values: Tensor) -> Any:
    """An attribution that somebody else has made."""
    lost = torch.zeros(1, len(values)).bool()
    return lambda *_, **__: SimpleNamespace(maps={"image": values[None]}, lost=lost, token=None)


def test_the_right_map_beats_random_ones_and_constant_and_wrong_maps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 0.1 * torch.randn(60, 10, 2, generator=generator)
    place = torch.randint(0, 10, (60,), generator=generator)
    x[torch.arange(60), place, 0] = 6.0
    data = [SimpleNamespace(features={"image": x}, masks={})]
    right = torch.nn.functional.one_hot(place, 10).float()
    gains = {}
    for name, values in {"right": right, "constant": torch.ones(60, 10), "wrong": 1 - right}.items():
        monkeypatch.setattr(removal, "attribute", maps_of(values))
        gains[name] = measure_faithfulness(_Walks(), data, method="given")
    assert gains["right"].beats_chance("image")
    assert gains["right"].gain["image"].value > 0.3
    assert not gains["constant"].beats_chance("image")
    assert abs(gains["constant"].gain["image"].value) < 0.15
    assert not gains["wrong"].beats_chance("image")
    assert gains["wrong"].words.startswith("Maps of image are weak evidence for this model")
    assert "weak" not in gains["right"].words


class _Walks(_OneToken):
    """As much of a model that iterates as its type asks for."""

    operator = None

    def read(self, state: Any, masks: Any) -> Tensor:
        raise NotImplementedError

    def damped(self) -> meq.Damped:
        return meq.Damped()


def test_masks_and_short_texts_are_no_trouble() -> None:
    found = measure_faithfulness(model(), [batch(4), batch(4, seed=1)], method="gradient")
    assert set(found.gain) == {"image", "text"}
    assert found.samples == 8
    again = measure_faithfulness(model(), [batch(4), batch(4, seed=1)], method="gradient")
    assert found == again, "drawn from a seed of its own"


def test_multiple_choice_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="not made for multiple choice"):
        measure_faithfulness(model(head="choices"), [batch()], method="gradient")


@pytest.mark.parametrize("head", ["classes", "labels", "score", "ordinal"])
def test_the_effects_of_all_modalities_add_up_to_the_answer_above_nothing(head: str) -> None:
    one, data = model(head=head), batch()
    data.masks["text"][0] = False  # the first sample has no text
    effects = modality_effects(one, data.features, data.masks)
    with torch.no_grad():
        logits = one(data.features, data.masks).logits
    if head == "score":
        whole = logits[:, 0].abs().double()
    else:
        chances = logits.sigmoid() if head == "labels" else logits.softmax(1)
        whole = chances.amax(1).double() - (0.5 if head == "labels" else 1 / 3)
    total = torch.stack(list(effects.values())).nansum(0)
    torch.testing.assert_close(total, whole, atol=1e-6, rtol=1e-5)
    assert effects["text"].isnan().tolist() == [True] + [False] * 23


def test_a_modality_that_the_answer_does_not_need_has_no_share() -> None:
    one, data = model(cross=False), batch()
    with torch.no_grad():
        one.head[0].weight[:, 16:] = 0
    effects = modality_effects(one, data.features, data.masks)
    with torch.no_grad():
        chances = one(data.features, data.masks).logits.softmax(1)
        without = one({"text": data.features["text"]}, data.masks).logits.softmax(1)
    answer = chances.argmax(1, keepdim=True)
    # with the picture there, the text adds nothing; alone, only what a constant answer has above chance
    expected = (without.gather(1, answer)[:, 0].double() - 1 / 3) / 2
    torch.testing.assert_close(effects["text"], expected, atol=1e-6, rtol=1e-5)
    assert float(effects["text"].abs().max()) < 0.01
    assert as_shares({"image": -0.2, "text": 0.0})["image"] == 1.0
    assert as_shares({"image": 0.3, "text": 0.1, "audio": float("nan")}) == pytest.approx({"image": 0.75, "text": 0.25})


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/data/snli_ve beside the checkout")
def test_the_default_maps_beat_constant_and_random_ones_on_real_photographs() -> None:
    """Photographs in which one cell was changed, or none, and that is the question."""
    tokens = photographs(64)
    generator = torch.Generator().manual_seed(0)
    changed = torch.randint(0, 2, (64,), generator=generator)
    place = torch.randint(0, tokens.shape[1], (64,), generator=generator)
    mark = torch.randn(tokens.shape[2], generator=generator)
    tokens[torch.arange(64), place] += 4 * mark * changed[:, None]
    texts = torch.randn(64, 3, 5, generator=generator)
    torch.manual_seed(0)
    one = meq.MutualEquilibrium({"image": tokens.shape[2], "text": 5}, 2, 16, heads=2, steps=3, head_width=32)
    optimiser = torch.optim.AdamW(one.parameters(), lr=3e-3)
    for _ in range(40):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(one({"image": tokens, "text": texts}).logits, changed)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
    seen = changed == 1
    data = SimpleNamespace(features={"image": tokens[seen], "text": texts[seen]}, masks={})
    found = measure_faithfulness(one.eval(), [data], method=DEFAULT_METHOD)
    assert found.beats_chance("image"), str(found)


def photographs(count: int) -> Tensor:
    files = sorted((SHARED / "flickr30k_images").iterdir())[:count]
    cells = Patches()([PictureFile(path, path.parent) for path in files])
    return torch.stack([each.features for each in cells]).float()
