"""What `check` says of a folder: what is there, what is missing, what is wrong and where."""

import struct
import weakref
import zlib
from pathlib import Path

import pytest
import torch
from data.more_folders import cod10k_folder, mosei_folder
from PIL import Image

from meq.data import DATA_SETS, IMAGE, TEXT, DataError, DataSet, Example, Findings, Rows, Split, features, request
from meq.data.check import Inspection, check
from meq.data.content import DrawnPicture
from meq.data.metrics import ACCURACY
from meq.data.request import Entry

CAT = Path("Train") / "Image" / "COD10K-CAM-1-Group-3-Cat-0.jpg"


def kinds(found: Inspection) -> dict[str, int]:
    return {problem.kind: problem.count for problem in found.problems}


def test_a_good_folder_is_ready_to_encode(tmp_path: Path) -> None:
    found = check("cod10k", cod10k_folder(tmp_path), dev=0)
    assert found.ok
    assert found.splits["train"].examples == 18
    assert found.splits["train"].labels == {"entailment": 9, "contradiction": 9}
    assert found.pictures == 9 + 4
    assert str(found).splitlines()[-1] == "Ready to encode."


def test_features_are_ready_to_train(tmp_path: Path) -> None:
    found = check("mosei", mosei_folder(tmp_path, "csd"))
    assert found.ok
    assert found.modalities["audio"] == "features, 4 wide"
    assert any("fail to align" in line for line in found.absent)
    assert str(found).endswith("Ready to train: nothing has to be encoded.")


def test_scores_are_shown_by_their_range(tmp_path: Path) -> None:
    found = check("mosei", mosei_folder(tmp_path), target="score")
    assert found.splits["train"].scores == pytest.approx((-3, 2.6))
    assert "from -3 to 2.6" in str(found)


def test_a_set_without_a_folder_is_checked_too() -> None:
    found = check("statements", train=10, dev=4, test=4)
    assert found.ok
    assert found.root is None
    assert found.splits["train"].labels == {"true": 5, "false": 5}


# pictures


def png_head(width: int, height: int) -> bytes:
    """A PNG that says it is that large, and holds next to nothing."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message", "seen_in_the_head"),
    [
        (b"", "not a readable picture", True),
        (b"this is not a picture", "not a readable picture", True),
        (png_head(100_000, 100_000), "pixels|too large", True),
        (png_head(12_000, 12_000), "12,000 x 12,000 pixels; at most 80,000,000", True),
        (png_head(300, 300), "not a readable picture", False),
    ],
    ids=["empty", "text", "bomb", "large", "truncated png"],
)
def test_a_broken_picture_is_named(tmp_path: Path, content: bytes, message: str, seen_in_the_head: bool) -> None:
    folder = cod10k_folder(tmp_path)
    (folder / CAT).write_bytes(content)
    found = check("cod10k", folder, dev=0)
    assert kinds(found)["broken picture"] == 1  # once, though two captions show it
    place = next(problem for problem in found.problems if problem.kind == "broken picture").places[0]
    assert place.file == str(folder / CAT)
    assert any(part in place.message for part in message.split("|"))
    assert ("broken picture" in kinds(check("cod10k", folder, dev=0, decode=False))) == seen_in_the_head


def test_a_truncated_photograph_needs_decoding_to_be_found(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    Image.effect_noise((30, 20), 80).convert("RGB").save(folder / CAT, quality=95)
    whole = (folder / CAT).read_bytes()
    (folder / CAT).write_bytes(whole[: len(whole) - 60])
    assert kinds(check("cod10k", folder, dev=0)) == {"broken picture": 1}
    assert check("cod10k", folder, dev=0, decode=False).ok


def test_a_picture_that_leads_out_of_the_folder_is_named(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path / "set")
    (folder / CAT).rename(tmp_path / "outside.jpg")
    (folder / CAT).symlink_to(tmp_path / "outside.jpg")
    found = check("cod10k", folder, dev=0)
    assert "leads outside" in str(found)
    assert not found.ok


def test_a_broken_mask_is_named(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    mask = folder / "Train" / "GT_Object" / "COD10K-CAM-1-Group-3-Cat-0.png"
    mask.write_bytes(mask.read_bytes()[:50])
    assert kinds(check("cod10k", folder, dev=0)) == {"broken mask": 1}


def test_missing_pictures_are_counted_with_their_first_places(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    lines = "\n".join(f"COD10K-CAM-1-Group-3-Cat-{number}.jpg 1" for number in range(50, 60))
    listing = folder / "Info" / "CAM_train.txt"
    listing.write_text(f"{listing.read_text()}\n{lines}")
    found = check("cod10k", folder, dev=0)
    page = str(found)
    assert "missing picture: 10" in page
    assert f"{listing}, line 11: " in page
    assert "and 7 more" in page
    assert page.endswith("10 problems; rows with problems are left out with --skip-bad.")


def test_odd_names_are_read_and_printed_harmlessly(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path / "söme @folder\x1b[31m\nwith 'quotes'")
    assert check("cod10k", folder, dev=0).ok
    (folder / CAT).unlink()
    page = str(check("cod10k", folder, dev=0))
    assert "missing picture: 1" in page
    assert "söme @folder\\x1b[31m\\nwith" in page
    assert "\x1b" not in page


def test_a_rare_problem_is_shown_beside_a_frequent_one(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    listing = folder / "Info" / "CAM_train.txt"
    missing = "\n".join(f"COD10K-CAM-1-Group-3-Cat-{number}.jpg 1" for number in range(2_000, 4_000))
    listing.write_text(f"{listing.read_text()}\n{missing}\nnonsense.jpg 1")
    found = check("cod10k", folder, dev=0)
    assert kinds(found) == {"missing picture": 2_000, "wrong name": 1}
    assert "'nonsense.jpg'" in str(found)


# what only a walk over the examples shows


def small(monkeypatch: pytest.MonkeyPatch, examples: Split, head: str = "classes") -> None:
    """A data set of these examples, under the name `small`."""

    def read() -> DataSet:
        return DataSet(
            name="small",
            splits={"train": examples},
            modalities={"image": IMAGE, "text": TEXT, "audio": features(2)},
            labels=("no", "yes"),
            head=head,
            metric=ACCURACY,
        )

    entry = Entry(source=read, summary="", metric="accuracy", embedded=True)
    monkeypatch.setitem(DATA_SETS._written, "small", entry)


def example(name: str = "a", target: torch.Tensor | None = None, **content: object) -> Example:
    return Example(id=name, content=content, target=target)  # type: ignore[arg-type]


def test_features_that_are_not_finite_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, [example("clip 7", audio=torch.tensor([[1.0, float("nan")], [float("inf"), 0]]))])
    found = check("small")
    assert kinds(found) == {"not finite": 1}
    assert "train, example 'clip 7': 'audio' holds 2 values that are not finite" in str(found)


def test_empty_texts_wrong_labels_and_duplicate_ids_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, [example(target=torch.tensor(2), text="x"), example(target=torch.tensor(1), text=(" ", "y"))])
    assert kinds(check("small")) == {"empty text": 1, "wrong label": 1, "duplicate id": 1}


def test_unlabelled_examples_and_missing_modalities_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, [example("a", text="x"), example("b", target=torch.tensor(1), text="y", audio=torch.ones(2))])
    found = check("small")
    assert found.ok
    split = found.splits["train"]
    assert (split.unlabelled, split.labels, split.without) == (1, {"yes": 1}, {"image": 2, "audio": 1})


def test_soft_labels_count_by_the_strongest(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [torch.tensor([0.3, 0.9]), torch.tensor([0.0, 0.0])]
    small(monkeypatch, [example(str(row), target=target, text="x") for row, target in enumerate(targets)], "labels")
    assert check("small").splits["train"].labels == {"yes": 1, "(none of the labels)": 1}


def test_an_empty_set_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, [])
    assert not check("small").ok
    assert str(check("small")).endswith("There is nothing in it.")


def test_the_walk_holds_one_example_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def make(row: int) -> Example:
        alive.append(sum(each() is not None for each in made))
        audio = torch.full((3, 2), float(row))
        made.append(weakref.ref(audio))
        return example(str(row), target=torch.tensor(0), audio=audio)

    small(monkeypatch, Rows(range(50), make))
    assert check("small").splits["train"].examples == 50
    assert max(alive) <= 1


def test_a_drawn_picture_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw() -> object:
        drawn.append(1)
        raise DataError("grid: cannot be drawn")

    picture = DrawnPicture("grid", draw)  # type: ignore[arg-type]
    small(monkeypatch, [example(str(row), target=torch.tensor(0), image=picture) for row in range(3)])
    found = check("small")
    assert len(drawn) == 1
    assert found.problems[0].places[0].message == "cannot be drawn"


def test_a_folder_that_cannot_be_read_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="looked for"):
        check("cod10k", tmp_path)
    with pytest.raises(DataError, match="did you mean 'cod10k'"):
        check("cod10", tmp_path)
    with pytest.raises(DataError, match="has no option 'layot'"):
        check("cod10k", tmp_path, layot="v3")


def test_findings_can_be_shared_with_the_reader(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    (folder / CAT).unlink()
    findings = Findings("skip")
    request.open_data("cod10k", folder, findings=findings, dev=0)
    assert kinds(check("cod10k", folder, dev=0)) == dict(findings.counts) == {"missing picture": 1}
