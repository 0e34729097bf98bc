from __future__ import annotations

import ast
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import meq
from meq.data.content import PictureFile
from meq.data.findings import DataError
from meq.data.pictures import LARGE_PIXELS, open_picture, open_scaled, size_of_picture
from meq.encoders.builtin import Patches


def photograph(width: int, height: int, form: str = "JPEG") -> bytes:
    """A smooth picture, so that scaling it in two ways gives nearly the same."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([across, down, 255 - across], axis=2).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **({"quality": 90} if form == "JPEG" else {"compress_level": 1}))
    return out.getvalue()


LARGE = photograph(6000, 3000)
assert LARGE_PIXELS < 6000 * 3000


def test_every_picture_is_opened_with_a_list_of_formats() -> None:
    """Whatever else Pillow knows, EPS by way of Ghostscript among it, is never tried on a file."""
    source = Path(meq.__file__).parent
    calls = []
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open":
                calls.append(path.name)
                assert "formats" in [keyword.arg for keyword in node.keywords], f"{path}:{node.lineno}"
    assert "pictures.py" in calls


@pytest.mark.parametrize("size", [(1200, 800), (5000, 3355)])
def test_a_picture_that_is_not_large_is_read_as_it_is(size: tuple[int, int]) -> None:
    content = photograph(*size)
    assert size[0] * size[1] <= LARGE_PIXELS
    image, whole = open_scaled(content, 100)
    assert whole == size
    assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


def test_a_large_jpeg_is_scaled_while_it_is_read_and_keeps_twice_what_is_needed() -> None:
    assert open_picture(LARGE).size == (6000, 3000)
    sizes = {side: open_scaled(LARGE, side) for side in (100, 224, 500, 1000, 2000)}
    assert {side: image.size for side, (image, _) in sizes.items()} == {
        100: (750, 375),
        224: (1500, 750),
        500: (3000, 1500),
        1000: (6000, 3000),
        2000: (6000, 3000),
    }
    assert {whole for _, whole in sizes.values()} == {(6000, 3000)}


def test_a_large_picture_of_another_format_is_read_whole() -> None:
    image, whole = open_scaled(photograph(6000, 3000, "PNG"), 100)
    assert image.size == whole == (6000, 3000)


def test_tokens_of_a_large_picture_lie_in_the_whole_one_and_are_about_the_same(tmp_path: Path) -> None:
    (tmp_path / "large.jpg").write_bytes(LARGE)
    (tmp_path / "large.png").write_bytes(photograph(6000, 3000, "PNG"))
    scaled, whole = Patches()([PictureFile(tmp_path / f"large.{form}", tmp_path) for form in ("jpg", "png")])
    assert scaled.boxes is not None
    assert whole.boxes is not None
    assert scaled.boxes.equal(whole.boxes)
    assert scaled.boxes.max() == 6000
    colours = scaled.features[:, :3] - whole.features[:, :3]  # edges, in a picture without any, are those of JPEG
    assert colours.abs().max() < 0.02


def test_sizes_come_from_the_head() -> None:
    assert size_of_picture(LARGE[:3000]) == (6000, 3000)
    with pytest.raises(DataError, match="an upload: not a readable picture"):
        open_picture(LARGE[:3000], name="an upload")
    with pytest.raises(FileNotFoundError):
        open_picture(Path("nothing.png"))
