from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders.models import noise, save_bert, save_clip, square_at
from PIL import Image

from meq.data.content import DrawnPicture
from meq.data.findings import DataError
from meq.encoders.catalogue import EncoderError
from meq.encoders.image import TransformerImage, View, check_geometry, grid_of, view_of

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("models") / "small-clip")


@pytest.fixture(scope="module")
def clip(folder: Path) -> TransformerImage:
    return TransformerImage(str(folder), batch_size=3)


@pytest.fixture(scope="module")
def patchwise(tmp_path_factory: pytest.TempPathFactory) -> TransformerImage:
    """A CLIP without layers: what a token says comes from its own patch."""
    return TransformerImage(str(save_clip(tmp_path_factory.mktemp("models") / "flat-clip", layers=0)))


def test_a_picture_becomes_a_class_token_and_a_grid_of_patches(clip: TransformerImage) -> None:
    tokens = clip([noise(90, 60)])[0]
    assert tokens.features.shape == (17, 32) == (17, clip.width)
    assert tokens.features.dtype == torch.float32
    assert not tokens.features.requires_grad
    assert tokens.boxes is not None
    assert tokens.boxes[0].isnan().all()
    assert not tokens.boxes[1:].isnan().any()


@pytest.mark.parametrize("size", [(240, 160), (160, 240), (160, 160), (250, 163)], ids=str)
def test_what_is_bright_changes_the_token_whose_box_holds_it(
    patchwise: TransformerImage, size: tuple[int, int]
) -> None:
    blank = patchwise([square_at(size, None)])[0]
    assert blank.boxes is not None
    for place in (1, 6, 12, 16):
        left, top, right, bottom = blank.boxes[place].tolist()
        middle = (round((left + right) / 2), round((top + bottom) / 2))
        bright = (middle[0] - 7, middle[1] - 7, middle[0] + 7, middle[1] + 7)
        changed = (patchwise([square_at(size, bright)])[0].features - blank.features).abs().amax(1)
        assert int(changed.argmax()) == place
        assert changed.sort().values[-2] < 0.2 * changed.max()


def test_what_the_centre_crop_cuts_off_changes_nothing(patchwise: TransformerImage) -> None:
    blank, left, right = (
        patchwise([square_at((240, 160), box)])[0] for box in (None, (0, 0, 25, 160), (215, 0, 240, 160))
    )
    assert torch.equal(blank.features, left.features)
    assert torch.equal(blank.features, right.features)
    assert blank.boxes is not None
    assert blank.boxes[1].tolist() == [40, 0, 80, 40]
    assert blank.boxes[16].tolist() == [160, 120, 200, 160]


def test_preprocessing_is_scaling_cropping_and_normalising_as_computed_by_hand(clip: TransformerImage) -> None:
    image = noise(96, 64).open()
    scaled = np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC))[:, 8:40]
    mean, deviation = np.array(clip.processor.image_mean), np.array(clip.processor.image_std)
    expected = torch.from_numpy((scaled / 255 - mean) / deviation).permute(2, 0, 1).float()
    with torch.no_grad():
        hidden = clip.network(pixel_values=expected[None]).last_hidden_state[0]
    assert torch.allclose(clip([noise(96, 64)])[0].features, hidden, atol=1e-5)


def test_a_processor_saved_by_an_old_version_is_read_the_same(
    clip: TransformerImage, folder: Path, tmp_path: Path
) -> None:
    """As the default CLIP on the Hub is: bare numbers for sizes, and a class that has another name today."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    settings |= {"size": 32, "crop_size": 32, "feature_extractor_type": "CLIPFeatureExtractor"}
    del settings["image_processor_type"]
    (copy / "preprocessor_config.json").write_text(json.dumps(settings))
    old = TransformerImage(str(copy))([noise(90, 60)])[0]
    assert torch.equal(old.features, clip([noise(90, 60)])[0].features)


def test_the_result_depends_neither_on_the_company_nor_on_the_order(clip: TransformerImage) -> None:
    pictures = [noise(60 + 10 * number, 50, seed=number) for number in range(5)]
    together = [tokens.features for tokens in clip(pictures)]
    backwards = [tokens.features for tokens in clip(pictures[::-1])][::-1]
    alone = [clip([picture])[0].features for picture in pictures]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
        assert torch.allclose(one, three, atol=1e-5)
    assert torch.equal(clip(pictures)[0].features, together[0])
    assert clip([]) == []


def test_grey_and_transparent_pictures_are_read_as_colours(clip: TransformerImage) -> None:
    grey = Image.new("L", (40, 40), 90)
    as_grey, as_rgb = clip([DrawnPicture("l", lambda: grey), DrawnPicture("rgb", lambda: grey.convert("RGB"))])
    assert torch.equal(as_grey.features, as_rgb.features)


def test_a_strip_that_scaling_would_blow_up_is_refused_by_name(clip: TransformerImage) -> None:
    strip = Image.new("RGB", (700_000, 1))
    with pytest.raises(DataError, match=r"the strip: 700,000 x 1 pixels.*22,400,000 x 32.*too long and thin"):
        clip([DrawnPicture("the strip", lambda: strip)])


def test_names_of_equal_folders_agree_and_other_weights_have_another_hash(
    clip: TransformerImage, patchwise: TransformerImage, folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert TransformerImage(str(copy)).weight_hash == clip.weight_hash != patchwise.weight_hash
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps({**settings, "image_mean": [0.5, 0.5, 0.5]}))
    assert TransformerImage(str(copy)).weight_hash != clip.weight_hash
    assert (clip.name, clip.revision, clip.kind, len(clip.weight_hash)) == ("small-clip", "local", "image", 64)


def test_a_text_model_is_no_picture_encoder(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"bert is a BertModel, which reads input_ids: it is no encoder of pictures"):
        TransformerImage(str(save_bert(tmp_path / "bert")))


def test_a_text_is_not_a_picture(clip: TransformerImage) -> None:
    with pytest.raises(TypeError, match=r"small-clip reads pictures, got str"):
        clip(["a dog"])


# -- other image models ------------------------------------------------------------------------------------------------


def test_cells_of_a_convolutional_network_are_tokens(tmp_path: Path) -> None:
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "resnet")
    ConvNextImageProcessorPil(size={"shortest_edge": 28}, crop_pct=0.875).save_pretrained(tmp_path / "resnet")
    encoder = TransformerImage(str(tmp_path / "resnet"))
    tokens = encoder([noise(96, 64)])[0]
    assert tokens.features.shape == (16, 16)
    assert tokens.boxes is not None
    assert tokens.boxes[0].tolist() == [20, 4, 34, 18]  # scaled by 2 to 48 x 32, of which 28 x 28 from (10, 2)
    assert encoder.pooled([noise(28, 28).open()]).shape == (1, 16)


def test_a_vision_transformer_that_squeezes_sees_the_whole_picture(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16
    )
    ViTModel(config).save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    tokens = TransformerImage(str(tmp_path / "vit"))([noise(96, 64)])[0]
    assert tokens.boxes is not None
    assert tokens.boxes[1:].tolist() == [[0, 0, 48, 32], [48, 0, 96, 32], [0, 32, 48, 64], [48, 32, 96, 64]]


def test_a_processor_that_moves_pixels_otherwise_is_refused() -> None:
    from transformers import CLIPImageProcessorPil

    class Mirrored(CLIPImageProcessorPil):
        def resize(self, image: np.ndarray, *args: object, **options: object) -> np.ndarray:
            return super().resize(image, *args, **options)[..., ::-1]

    options = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    check_geometry(CLIPImageProcessorPil(**options), "plain")
    with pytest.raises(EncoderError, match=r"mirrored: its preprocessing moves pixels in a way that is not understood"):
        check_geometry(Mirrored(**options), "mirrored")


def test_a_window_wider_than_the_picture_has_cells_without_a_place() -> None:
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(do_resize=False, crop_size={"height": 40, "width": 40})
    view = view_of(processor, (10, 40))
    assert (view.left, view.top, view.window) == (-15, 0, (40, 40))
    boxes = view.boxes(4, 4)
    assert boxes[0].isnan().all()
    assert boxes[1].tolist() == [0, 0, 5, 10]
    assert boxes[2].tolist() == [5, 0, 10, 10]


@pytest.mark.parametrize(
    ("count", "window", "patch", "grid"),
    [
        (50, (224, 224), (32, 32), (1, 7, 7)),
        (201, (224, 224), (16, 16), (5, 14, 14)),  # class token and registers
        (49, (224, 224), (4, 4), (0, 7, 7)),  # Swin merges its patches
        (6, (96, 64), None, (0, 2, 3)),
    ],
)
def test_a_grid_is_found_from_patches_or_from_a_stride(
    count: int, window: tuple[int, int], patch: tuple[int, int] | None, grid: tuple[int, int, int]
) -> None:
    assert grid_of(count, window, patch=patch, name="model") == grid


def test_a_model_that_leaves_patches_out_is_refused(tmp_path: Path) -> None:
    from transformers import ViTImageProcessorPil, ViTMAEConfig, ViTMAEModel

    config = ViTMAEConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=32, patch_size=8
    )
    ViTMAEModel(config).save_pretrained(tmp_path / "mae")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "mae")
    with pytest.raises(EncoderError, match=r"mae: where its 5 tokens of a 32 x 32 picture lie is not known"):
        TransformerImage(str(tmp_path / "mae"))


def test_boxes_tile_what_is_seen() -> None:
    view = View(original=(300, 200), scaled=(336, 224), left=56, top=0, window=(224, 224))
    boxes = view.boxes(7, 7)
    assert boxes[:, 0].min() == 50
    assert boxes[:, 2].max() == 250
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum()
    assert float(area) == pytest.approx(200 * 200, rel=1e-6)


def test_a_window_that_is_no_square_is_tiled_in_both_directions() -> None:
    view = View(original=(400, 100), scaled=(200, 100), left=20, top=10, window=(160, 80))
    boxes = view.boxes(2, 4)
    assert boxes[0].tolist() == [40, 10, 120, 50]
    assert boxes[7].tolist() == [280, 50, 360, 90]
