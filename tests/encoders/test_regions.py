from __future__ import annotations

import numpy as np
import pytest
import torch
from encoders.models import noise, save_clip, square_at
from PIL import Image

from meq.data.content import DrawnPicture, Regions
from meq.data.findings import DataError
from meq.encoders.builtin import Patches
from meq.encoders.catalogue import EncoderError
from meq.encoders.image import PictureRegions, TransformerImage
from meq.encoders.marks import Marks

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")

PERSON, DOG, BEYOND, BEFORE = (
    (10.0, 20.0, 40.0, 100.0),
    (60.5, 30.0, 119.0, 90.0),
    (100.0, -10.0, 150.0, 40.0),
    (-5.0, 70.0, 30.0, 200.0),
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> TransformerImage:
    return TransformerImage(str(save_clip(tmp_path_factory.mktemp("models") / "small-clip")), batch_size=2)


@pytest.fixture(scope="module")
def encoder(clip: TransformerImage) -> PictureRegions:
    """As older runs have them."""
    return PictureRegions(clip, patches=False)


def regions(*boxes: tuple[float, float, float, float], seed: int = 0) -> Regions:
    return Regions(picture=noise(120, 110, seed), boxes=boxes, names=tuple(f"thing {box}" for box in boxes))


def test_the_whole_picture_comes_first_then_one_token_per_box(encoder: PictureRegions, clip: TransformerImage) -> None:
    tokens = encoder([regions(PERSON, DOG, BEYOND, BEFORE)])[0]
    assert tokens.features.shape == (5, encoder.width)
    assert tokens.features.dtype == torch.float32
    assert tokens.boxes is not None
    assert tokens.boxes[:3].tolist() == [[0, 0, 120, 110], list(PERSON), list(DOG)]
    assert tokens.boxes[3:].tolist() == [[100, 0, 120, 40], [0, 70, 30, 110]]
    image = noise(120, 110).open()
    whole = image.resize((32, 32), Image.Resampling.BICUBIC)
    person = image.resize((32, 32), Image.Resampling.BICUBIC, box=PERSON)
    assert torch.allclose(tokens.features[:2], clip.pooled([whole, person]), atol=1e-5)


def test_the_pictures_own_tokens_come_first_with_their_places_then_the_regions(
    encoder: PictureRegions, clip: TransformerImage
) -> None:
    both = PictureRegions(clip)
    tokens, alone = both([regions(PERSON, DOG)])[0], encoder([regions(PERSON, DOG)])[0]
    picture = clip([noise(120, 110)])[0]
    count = len(picture.features)
    assert tokens.boxes is not None
    assert picture.boxes is not None
    assert torch.equal(tokens.features, torch.cat([picture.features, alone.features[1:]]))
    assert torch.equal(tokens.boxes[:count].nan_to_num(-1), picture.boxes.nan_to_num(-1))
    assert tokens.boxes[count:].tolist() == [list(PERSON), list(DOG)]
    assert len(both([regions()])[0].features) == count, "a picture without boxes has its own tokens"
    assert both.name != encoder.name, "a store keeps them apart"


def test_regions_of_a_narrower_summary_are_filled_up_with_zeros() -> None:
    patches = Patches(grid=2)
    tokens = PictureRegions(patches)([regions(PERSON)])[0]
    summed = patches.pooled([Image.new("RGB", patches.window)]).shape[1]
    assert tokens.features.shape == (5, patches.width)
    assert not tokens.features[-1, summed:].any()
    assert tokens.features[-1, :summed].any()


def test_a_token_is_the_class_token_as_the_model_sums_a_picture_up(clip: TransformerImage) -> None:
    image = noise(32, 32).open()
    pixels = (np.asarray(image) / 255 - clip.processor.image_mean) / clip.processor.image_std
    with torch.no_grad():
        output = clip.network(pixel_values=torch.from_numpy(pixels).permute(2, 0, 1).float()[None])
    assert torch.allclose(clip.pooled([image]), output.pooler_output, atol=1e-5)
    assert clip.pooled([image]).shape == (1, clip.width)


def test_a_region_is_told_by_what_is_inside_of_its_box(encoder: PictureRegions) -> None:
    boxes = ((0.0, 0.0, 60.0, 60.0), (60.0, 60.0, 120.0, 120.0))

    def seen(bright: tuple[int, int, int, int] | None) -> torch.Tensor:
        return encoder([Regions(picture=square_at((120, 120), bright), boxes=boxes, names=("a", "b"))])[0].features

    changed = (seen((70, 70, 110, 110)) - seen(None)).abs().amax(1) > 1e-6
    assert changed.tolist() == [True, False, True]


def test_regions_of_other_pictures_change_nothing(encoder: PictureRegions) -> None:
    several = [regions(PERSON, DOG), regions(seed=1), regions(BEYOND, PERSON, DOG, seed=2)]
    together, alone = encoder(several), [encoder([each])[0] for each in several]
    assert [len(tokens.features) for tokens in together] == [3, 1, 4]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one.features, other.features, atol=1e-5)
    assert encoder([]) == []


@pytest.mark.parametrize("box", [(5.0, 5.0, 5.0, 90.0), (119.9, 0.0, 120.0, 110.0), (120.0, 110.0, 120.0, 110.0)])
def test_a_box_as_thin_as_a_line_is_widened_to_a_pixel(
    encoder: PictureRegions, box: tuple[float, float, float, float]
) -> None:
    tokens = encoder([regions(box)])[0]
    assert tokens.features.isfinite().all()
    assert tokens.boxes is not None
    assert tokens.boxes[1].tolist() == pytest.approx(box)


def test_a_long_thin_picture_is_squeezed_and_not_blown_up(encoder: PictureRegions) -> None:
    strip = DrawnPicture("strip", lambda: Image.new("RGB", (500_000, 1)))
    tokens = encoder([Regions(picture=strip, boxes=((0.0, 0.0, 400_000.0, 1.0),), names=("line",))])[0]
    assert tokens.features.shape == (2, encoder.width)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((40.0, 20.0, 10.0, 100.0), r"noise 120 x 110: box 1 is .*left, top, right, bottom"),
        ((float("nan"), 0.0, 1.0, 1.0), r"noise 120 x 110: box 1 is .*left, top, right, bottom"),
        ((130.0, 0.0, 140.0, 10.0), r"noise 120 x 110: box 1, .*lies outside of 120 x 110"),
    ],
)
def test_a_box_that_cannot_be_cut_out_is_named_with_its_picture(
    encoder: PictureRegions, box: tuple[float, float, float, float], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        encoder([regions(PERSON, box)])


def test_other_contents_and_other_encoders_are_refused(encoder: PictureRegions, unchecked: None) -> None:
    with pytest.raises(TypeError, match=r"small-clip regions reads regions of pictures, got DrawnPicture"):
        encoder([noise(8, 8)])
    with pytest.raises(EncoderError, match=r"marks.* gives no summary of a picture"):
        PictureRegions(Marks())


def test_a_region_encoder_is_told_apart_from_the_encoder_of_whole_pictures(
    encoder: PictureRegions, clip: TransformerImage
) -> None:
    assert (encoder.kind, encoder.revision, encoder.name) == ("regions", "local", "small-clip regions")
    assert encoder.weight_hash == PictureRegions(clip, patches=False).weight_hash != clip.weight_hash


def test_nothing_is_cropped_from_a_region_by_a_model_that_crops_pictures(tmp_path: Path) -> None:
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "resnet")
    ConvNextImageProcessorPil(size={"shortest_edge": 28}, crop_pct=0.5).save_pretrained(tmp_path / "resnet")
    encoder = PictureRegions(TransformerImage(str(tmp_path / "resnet")), patches=False)
    assert encoder.width == 16
    plain, framed = (
        encoder([Regions(picture=square_at((56, 56), box), boxes=(), names=())])[0].features
        for box in (None, (0, 0, 8, 56))
    )
    assert not torch.allclose(plain, framed, atol=1e-3)
