"""Data sets made from others: standardised, blanked (nothing is left to see), corrupted (the same for every model)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.more_folders import cod10k_folder
from PIL import Image
from torch import Tensor

from meq.data import IMAGE, REGIONS
from meq.data.cod10k import cod10k
from meq.data.content import Content, DrawnPicture, PictureFile, Regions
from meq.data.contract import TEXT, DataSet, Example, Modality, collate, features
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.data.statements import statements
from meq.data.transforms import (
    DRAWS,
    STUDY,
    CorruptedPicture,
    Corruption,
    Standardisation,
    blank,
    corrupt,
    noisy,
    standardise,
    typos,
)
from meq.models import MutualEquilibrium
from meq.records import FormatError, dumps, loads, typed


def made(splits: dict[str, list[dict[str, Any]]], **modalities: Any) -> DataSet:
    rows = {
        name: [Example(id=f"{name}-{n}", content=content, target=torch.tensor(0)) for n, content in enumerate(contents)]
        for name, contents in splits.items()
    }
    return DataSet(name="set", splits=rows, modalities=modalities, labels=("a", "b"), head="classes", metric=ACCURACY)


def stacked(data: DataSet, split: str, name: str) -> Tensor:
    rows = [example.content[name] for example in data.splits[split] if name in example.content]
    return torch.cat([x.reshape(-1, x.shape[-1]) for x in rows if isinstance(x, Tensor)])


def vectors(count: int, *, scale: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"v": torch.randn(3, generator=generator) * scale + 100} for _ in range(count)]


def test_train_gets_mean_0_and_deviation_1() -> None:
    data, found = standardise(made({"train": vectors(50), "dev": vectors(10)}, v=features(3)))
    x = stacked(data, "train", "v")
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert data.facts["standardised"] == ["v"]
    assert data.widths == {"v": 3}
    torch.testing.assert_close(torch.tensor(found.mean["v"]), stacked(made({"t": vectors(50)}), "t", "v").mean(0))


def test_other_splits_have_no_say_in_the_statistics() -> None:
    _, one = standardise(made({"train": vectors(20), "dev": vectors(5)}, v=features(3)))
    _, two = standardise(made({"train": vectors(20), "dev": vectors(9, scale=1000, seed=1)}, v=features(3)))
    assert one == two


def test_a_constant_column_becomes_0_and_stays_finite_elsewhere() -> None:
    splits = {"train": [{"v": torch.tensor([0.1, n])} for n in (1.0, 2.0)], "dev": [{"v": torch.tensor([0.6, 1.5])}]}
    data, found = standardise(made(splits, v=features(2)))
    assert found.std["v"][0] == 1
    assert stacked(data, "train", "v").tolist() == [[0, -1], [0, 1]]
    torch.testing.assert_close(stacked(data, "dev", "v"), torch.tensor([[0.5, 0.0]]))


def test_tokens_count_one_by_one_and_missing_rows_not_at_all() -> None:
    train = [{"v": torch.tensor([[0.0], [2.0], [4.0]])}, {}, {"v": torch.tensor([6.0])}]
    data, found = standardise(made({"train": train}, v=features(1)))
    assert found.mean["v"] == (3.0,)
    assert found.std["v"] == pytest.approx((5**0.5,))
    assert "v" not in data.splits["train"][1].content
    first = data.splits["train"][0].content["v"]
    assert isinstance(first, Tensor)
    assert first.shape == (3, 1)


def test_choices_are_standardised_one_by_one() -> None:
    data, _ = standardise(made({"train": [{"v": (torch.tensor([1.0]), torch.tensor([3.0]))}]}, v=features(1)))
    assert data.splits["train"][0].content["v"] == (torch.tensor([-1.0]), torch.tensor([1.0]))


def test_texts_and_what_train_never_has_stay_as_they_are() -> None:
    splits = {"train": [{"t": "word"}], "dev": [{"t": "word", "v": torch.tensor([7.0])}]}
    data, found = standardise(made(splits, t=TEXT, v=features(1)))
    assert found.mean == {}
    assert data.splits["dev"][0].content == {"t": "word", "v": torch.tensor([7.0])}


def stored(found: Standardisation) -> Standardisation:
    """As a task file keeps it and gives it back."""
    return typed(Standardisation, loads(dumps(found), "task.json"), "task.json")


def test_statistics_survive_json_exactly() -> None:
    _, found = standardise(made({"train": vectors(20)}, v=features(3)))
    assert stored(found) == found


def test_stored_statistics_do_to_new_data_what_they_did_to_the_old() -> None:
    data, found = standardise(made({"train": vectors(20)}, v=features(3)))
    again = stored(found).apply(made({"train": vectors(20)}, v=features(3)))
    assert again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("text", ["{", "[]", '{"mean": {}}', '{"mean": {"v": ["x"]}, "std": {"v": [1]}}'])
def test_json_of_something_else_is_an_error(text: str) -> None:
    with pytest.raises(FormatError):
        typed(Standardisation, loads(text, "task.json"), "task.json")


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deviation_must_be_positive_and_finite(std: float) -> None:
    with pytest.raises(DataError, match="positive and finite"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (std,)})


def test_statistics_of_another_shape_are_errors() -> None:
    data = made({"train": vectors(2)}, v=features(3))
    with pytest.raises(DataError, match="'v' has width 3, the statistics are of 1 columns"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (1.0,)}).apply(data)
    with pytest.raises(DataError, match="no modality 'w'"):
        Standardisation(mean={"w": (0.0,)}, std={"w": (1.0,)}).apply(data)
    with pytest.raises(DataError, match="as many means"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (1.0, 1.0)})


def test_without_train_there_are_no_statistics() -> None:
    with pytest.raises(DataError, match="no train split"):
        standardise(made({"dev": vectors(2)}, v=features(3)))


def test_a_number_that_is_not_finite_is_named_with_its_example() -> None:
    with pytest.raises(DataError, match="example 'train-0': 'v' holds numbers that are not finite"):
        standardise(made({"train": [{"v": torch.tensor([float("nan")])}]}, v=features(1)))


WIDTH = 4


def tokens(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


FORMS: dict[str, Callable[[int, int], Content]] = {
    "tokens": lambda seed, row: tokens(seed + row, 2 + row % 3),
    "vectors": lambda seed, row: tokens(seed + row),
    "choices": lambda seed, row: tuple(tokens(seed + row + 10 * at, 1 + (at + row) % 3) for at in range(4)),
    "choices of vectors": lambda seed, row: tuple(tokens(seed + row + 10 * at) for at in range(4)),
}
"""By name: (seed, row) -> what an example's modality holds."""


def data_of(form: str, *, seed: int = 0, missing: bool = False) -> DataSet:
    """Six examples; with `missing`, every third one lacks the modality."""

    def example(row: int) -> Example:
        content: dict[str, Content] = {"image": tokens(1000 + row, 3)}
        if not (missing and row % 3 == 0):
            content["text"] = FORMS[form](seed, row)
        return Example(id=f"{row}", content=content, target=torch.tensor(row % 2))

    return DataSet(
        name="made up",
        splits={"train": [example(row) for row in range(6)]},
        modalities={"image": features(WIDTH), "text": features(WIDTH)},
        labels=("no", "yes"),
        head="choices" if form.startswith("choices") else "classes",
        metric=ACCURACY,
    )


def logits(data: DataSet) -> Tensor:
    torch.manual_seed(0)
    model = MutualEquilibrium(data.widths, 2, dim=8, heads=2, steps=2, head=data.head, head_width=8).eval()
    batch = collate(list(data.splits["train"]), data.widths)
    with torch.no_grad():
        return model(batch.features, batch.masks).logits


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_blanked_modality_reaches_the_model(form: str, missing: bool) -> None:
    whole, other = data_of(form, missing=missing), data_of(form, seed=500, missing=missing)
    assert not torch.equal(logits(whole), logits(other)), "before, it is read"
    without = blank(whole, ["text"])
    assert torch.equal(logits(without), logits(blank(other, ["text"])))
    assert not torch.equal(logits(without), logits(whole))
    assert without.fingerprint() == blank(other, ["text"]).fingerprint() != whole.fingerprint()
    assert without.facts["blank"] == ["text"]
    assert not collate(list(without.splits["train"]), without.widths).features["text"].any()


@pytest.mark.parametrize("form", FORMS)
def test_the_other_modality_is_read_as_before(form: str) -> None:
    data = data_of(form)
    changed = [
        replace(each, content={**each.content, "image": -each.content["image"]}) for each in data.splits["train"]
    ]
    moved = replace(data, splits={"train": changed})
    assert not torch.equal(logits(blank(data, ["text"])), logits(blank(moved, ["text"])))


def test_blanked_choices_cannot_be_told_apart_by_their_length() -> None:
    found = logits(blank(data_of("choices"), ["text"]))
    assert found.shape == (6, 4)
    torch.testing.assert_close(found, found[:, :1].expand(-1, 4))


def test_what_cannot_be_blanked_is_not_passed_on() -> None:
    data = data_of("tokens")
    strange: Any = [replace(data.splits["train"][0], content={"image": tokens(0), "text": "words"})]
    with pytest.raises(DataError, match="example '0': 'text' is a str, which cannot be blanked"):
        list(blank(replace(data, splits={"train": strange}), ["text"]).splits["train"])
    with pytest.raises(DataError, match="nothing left to learn from"):
        blank(data, ["text", "image"])
    with pytest.raises(DataError, match="did you mean 'text'"):
        blank(data, ["txt"])
    raw = replace(data, modalities={**data.modalities, "text": Modality(kind="text")})
    with pytest.raises(DataError, match="is not encoded yet"):
        blank(raw, ["text"])


NOISE, BLUR, TYPOS = Corruption("noise", 0.1), Corruption("blur", 2), Corruption("typos", 0.1)
LONG = "the quick brown fox jumps over the lazy dog " * 200


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return cod10k(cod10k_folder(tmp_path), dev=0)


def grey(width: int, height: int) -> DrawnPicture:
    return DrawnPicture("grey", lambda: Image.new("RGB", (width, height), (128, 128, 128)))


def test_the_study_is_the_paper_s_table() -> None:
    assert [str(each) for each in STUDY] == [
        "noise 0.1", "noise 0.3", "blur 2", "blur 8", "typos 0.05", "typos 0.1",
    ]  # fmt: skip
    assert DRAWS == 5


@pytest.mark.parametrize("size", [(64, 64), (640, 320)])
def test_noise_has_its_deviation_at_the_encoder_s_size(size: tuple[int, int]) -> None:
    image = CorruptedPicture(grey(*size), NOISE, "stream", 224).open()
    assert min(image.size) == 224
    assert np.std(np.asarray(image) / 255 - 128 / 255) == pytest.approx(0.1, rel=0.02)


def test_noise_stays_within_the_picture_s_range() -> None:
    pixels = np.asarray(noisy(Image.new("RGB", (50, 50), (250, 5, 128)), 0.3, np.random.default_rng(0)))
    assert pixels.dtype == np.uint8
    assert (pixels[..., 0] == 255).mean() > 0.3  # clipped, not wrapped around
    assert (pixels[..., 1] == 0).mean() > 0.3


@pytest.mark.parametrize("scale", [1, 3])
def test_blur_has_its_radius_at_the_encoder_s_size(scale: int) -> None:
    """An edge blurred with radius r rises from 16 % to 84 % over 2 r pixels, whatever the size of the original."""
    edge = Image.new("RGB", (224 * scale, 224 * scale))
    edge.paste((255, 255, 255), (112 * scale, 0, 224 * scale, 224 * scale))
    row = np.asarray(CorruptedPicture(DrawnPicture("edge", lambda: edge), Corruption("blur", 8), "", 224).open())
    profile = row[112, :, 0] / 255
    assert np.searchsorted(profile, 0.84) - np.searchsorted(profile, 0.16) == pytest.approx(16, abs=2)


def test_every_draw_is_another_and_the_same_again(data: DataSet) -> None:
    for corruption in (NOISE, TYPOS):
        prints = [corrupt(data, corruption, draw=draw, seed=0).fingerprint() for draw in range(3)]
        assert len({*prints, data.fingerprint()}) == 4
        assert corrupt(data, corruption, draw=1, seed=0).fingerprint() == prints[1]
        assert corrupt(data, corruption, draw=1, seed=1).fingerprint() != prints[1]


def test_blur_is_the_same_in_every_draw(data: DataSet) -> None:
    assert not BLUR.is_random
    first, second = (corrupt(data, BLUR, draw=draw, seed=0).fingerprint() for draw in (0, 1))
    assert first == second != data.fingerprint()


def test_examples_are_corrupted_independently(data: DataSet) -> None:
    """The two captions of a picture make two examples, each with noise of its own."""
    first, second = corrupt(data, NOISE, draw=0, seed=0).splits["train"][:2]
    assert isinstance(first.content["image"], CorruptedPicture)
    assert isinstance(second.content["image"], CorruptedPicture)
    assert first.content["image"].original == second.content["image"].original
    a, b = (np.asarray(example.content["image"].open()) for example in (first, second))  # type: ignore[union-attr]
    assert (a != b).mean() > 0.5


def test_what_is_opened_agrees_with_the_fingerprint(data: DataSet) -> None:
    pictures = [corrupt(data, NOISE, draw=0, seed=0).splits["train"][0].content["image"] for _ in range(2)]
    a, b = (np.asarray(picture.open()) for picture in pictures)  # type: ignore[union-attr]
    assert (a == b).all()


def test_the_order_of_examples_changes_nothing(data: DataSet) -> None:
    worse = corrupt(data, TYPOS, draw=0, seed=0).splits["train"]
    backwards = [worse[place].content["text"] for place in reversed(range(len(worse)))]
    assert backwards[::-1] == [example.content["text"] for example in worse]


def test_only_what_is_meant_is_changed(data: DataSet) -> None:
    clean = data.splits["train"][0]
    noise, misspelt = (corrupt(data, each, draw=0, seed=0).splits["train"][0] for each in (NOISE, TYPOS))
    assert noise.content["text"] == clean.content["text"]
    assert misspelt.content["image"] == clean.content["image"]
    assert (noise.id, noise.target, noise.facts) == (clean.id, clean.target, clean.facts)


def test_no_picture_is_opened_before_it_is_used(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: PictureFile) -> Image.Image:
        raise AssertionError("opened")

    monkeypatch.setattr(PictureFile, "open", never)
    picture = corrupt(data, NOISE, draw=0, seed=0).splits["train"][0].content["image"]
    with pytest.raises(AssertionError, match="opened"):
        picture.open()  # type: ignore[union-attr]


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_typos_hit_the_share_of_characters(share: float) -> None:
    """A word stays whole if none of its characters is hit."""
    words, generator = LONG.split(), np.random.default_rng(0)
    whole = sum(typos(word, share, generator) == word for word in words)
    assert whole / len(words) == pytest.approx(np.mean([(1 - share) ** len(word) for word in words]), abs=0.025)


def test_typos_leave_spaces_and_words_apart() -> None:
    worse = typos(LONG, 0.5, np.random.default_rng(0))
    assert worse.count(" ") == LONG.count(" ")
    assert worse != LONG


def test_no_typos_at_share_0_and_never_an_empty_text() -> None:
    assert typos(LONG, 0, np.random.default_rng(0)) == LONG
    assert all(typos("a", 1, np.random.default_rng(seed)).strip() for seed in range(50))
    assert typos("", 1, np.random.default_rng(0)) == ""


def one(modality: str, kind: object, content: object) -> DataSet:
    example = Example(id="x", content={modality: content}, target=torch.tensor(0))  # type: ignore[dict-item]
    return DataSet(
        name="one",
        splits={"train": [example]},
        modalities={modality: kind},  # type: ignore[dict-item]
        labels=("a", "b"),
        head="choices",
        metric=ACCURACY,
    )


def test_choices_get_typos_of_their_own() -> None:
    worse = corrupt(one("text", TEXT, (LONG, LONG)), TYPOS).splits["train"][0].content["text"]
    assert isinstance(worse, tuple)
    assert worse[0] != worse[1]


def test_boxes_follow_the_picture_to_its_new_size() -> None:
    regions = Regions(picture=grey(100, 50), boxes=((10.0, 20.0, 30.0, 40.0),), names=("cat",))
    worse = corrupt(one("image", REGIONS, regions), NOISE, encoder_size=100).splits["train"][0].content["image"]
    assert isinstance(worse, Regions)
    assert worse.boxes == ((20.0, 40.0, 60.0, 80.0),)
    assert worse.picture.open().size == (200, 100)


def test_a_picture_too_narrow_to_be_scaled_is_an_error() -> None:
    worse = corrupt(one("image", IMAGE, grey(1, 100_000)), NOISE).splits["train"][0].content["image"]
    with pytest.raises(DataError, match="too narrow"):
        worse.open()  # type: ignore[union-attr]


def test_features_cannot_be_corrupted() -> None:
    with pytest.raises(ValueError, match="corrupt before encoding"):
        corrupt(statements(train=2, dev=1, test=1), NOISE)


@pytest.mark.usefixtures("unchecked")
def test_a_corruption_that_means_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'noise'"):
        Corruption("noize", 0.1)  # type: ignore[arg-type]
    for kind, strength in (("typos", 1.5), ("noise", -1.0), ("blur", float("nan"))):
        with pytest.raises(ValueError, match="means nothing"):
            Corruption(kind, strength)  # type: ignore[arg-type]


def test_the_record_says_what_was_done(data: DataSet) -> None:
    facts = corrupt(data, NOISE, draw=3, seed=7).facts["corruption"]
    assert facts == {"kind": "noise", "strength": 0.1, "draw": 3, "seed": 7, "encoder_size": 224}
