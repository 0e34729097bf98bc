"""COD10K: captions that alone tell nothing, masks, and the two layouts."""

import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from data.more_folders import ANIMALS, cod10k_folder
from PIL import Image

from meq.data import DataError, DataSet, Findings
from meq.data.cod10k import LABELS, caption, cod10k, in_words, permuted_names
from meq.data.content import MaskFile, PictureFile

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_lists = pytest.mark.skipif(not (SHARED / "cod10k_info").is_dir(), reason="no shared/data beside the checkout")
needs_pictures = pytest.mark.skipif(
    not (SHARED / "cod10k_sample").is_dir(), reason="no shared/data beside the checkout"
)


def names_by_label(data: DataSet, split: str) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {label: Counter() for label in LABELS}
    for example in data.splits[split]:
        assert example.target is not None
        counts[LABELS[int(example.target)]][example.facts["name"]] += 1
    return counts


@pytest.mark.parametrize("layout", ["v3", "sinet"])
def test_both_layouts_hold_the_same_examples(tmp_path: Path, layout: str) -> None:
    data = cod10k(cod10k_folder(tmp_path, layout), dev=0.2)
    named = len(ANIMALS["train"]) - ANIMALS["train"].count("Other")
    assert data.facts["layout"] == layout
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 2 * (named - 2),
        "dev": 2 * 2,
        "test": 2 * len(ANIMALS["test"]),
    }
    assert data.facts["left_out"]["animal without a name"] == 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_names_and_pictures_are_exactly_balanced(tmp_path: Path, split: str) -> None:
    data = cod10k(cod10k_folder(tmp_path), dev=0)
    counts = names_by_label(data, split)
    assert counts["entailment"] == counts["contradiction"]
    pictures = Counter((example.facts["picture"], int(example.target)) for example in data.splits[split])  # type: ignore[arg-type]
    assert set(pictures.values()) == {1}
    assert len(pictures) == len(data.splits[split])


def test_a_caption_is_true_exactly_when_it_names_what_is_hidden(tmp_path: Path) -> None:
    for split in cod10k(cod10k_folder(tmp_path), dev=0).splits.values():
        for example in split:
            assert example.target is not None
            assert (example.facts["name"] == example.facts["hidden"]) == (LABELS[int(example.target)] == "entailment")
            assert example.facts["name"] in str(example.content["text"])


def test_the_seed_decides_captions_and_split(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    first, same, other = (cod10k(folder, seed=seed, dev=0.2) for seed in (0, 0, 1))
    assert first.fingerprint() == same.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_no_picture_is_in_two_splits(tmp_path: Path) -> None:
    data = cod10k(cod10k_folder(tmp_path), dev=0.4)
    homes = [{example.facts["picture"] for example in split} for split in data.splits.values()]
    assert len(set.union(*homes)) == sum(map(len, homes))


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("LeafySeaDragon", "leafy sea dragon", "A leafy sea dragon is hidden in the picture"),
        ("Owl", "owl", "An owl is hidden in the picture"),
        ("Ant", "ant", "An ant is hidden in the picture"),
        ("GhostPipefish", "ghost pipefish", "A ghost pipefish is hidden in the picture"),
        ("cat", "cat", "A cat is hidden in the picture"),
    ],
)
def test_class_names_become_english(name: str, words: str, sentence: str) -> None:
    assert in_words(name) == words
    assert caption(in_words(name)) == sentence


@pytest.mark.parametrize("seed", range(5))
def test_wrong_names_are_a_permutation_and_never_right(seed: int) -> None:
    generator = random.Random(seed)
    names = [generator.choice("aaabbcd") for _ in range(50)] + ["e"] * 50
    wrong = permuted_names(names, generator)
    assert Counter(wrong) == Counter(names)
    assert all(a != b for a, b in zip(names, wrong, strict=True))


def test_wrong_names_do_not_depend_on_the_right_one_alone() -> None:
    names = ["a", "b", "c", "d"] * 25
    pairs = set(zip(names, permuted_names(names, random.Random(0)), strict=True))
    assert len(pairs) == 4 * 3


def test_pictures_for_which_no_wrong_caption_is_left_are_reported(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    lines = (folder / "Info" / "CAM_test.txt").read_text().split()
    (folder / "Info" / "CAM_test.txt").write_text("\n".join(f"{lines[place]} 1" for place in (0, 2)))
    (folder / "Info" / "CAM_train.txt").write_text("COD10K-CAM-1-Group-3-Cat-0.jpg 1\nCOD10K-CAM-1-Group-3-Cat-3.jpg 1")
    with pytest.raises(DataError, match=r"Cat-3\.jpg: 2 of 2 pictures of train show the same animal \(cat\)"):
        cod10k(folder, dev=0)
    findings = Findings("skip")
    data = cod10k(folder, findings=findings, dev=0)
    assert findings.counts == {"no wrong caption": 2}
    assert {name: len(split) for name, split in data.splits.items()} == {"test": 4}


def test_too_few_pictures_for_a_dev_split_are_no_fault(tmp_path: Path) -> None:
    findings = Findings()
    data = cod10k(cod10k_folder(tmp_path), findings=findings, dev=0.01)
    assert list(data.splits) == ["train", "test"]
    assert findings.absent == ["the split dev: 0.01 of 9 training pictures is none"]


def test_masks_show_where_the_animal_is(tmp_path: Path) -> None:
    example = cod10k(cod10k_folder(tmp_path), dev=0).splits["train"][0]
    mask = example.facts["mask"]
    assert isinstance(mask, MaskFile)
    shown = mask.open()
    assert shown.dtype == bool
    assert shown.shape == (20, 30)
    assert shown[8, 9]
    assert not shown[0, 0]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Image.new("L", (30, 20), 128), "other values than 0 and 255"),
        (Image.new("RGB", (30, 20), (255, 0, 0)), "other values than 0 and 255"),
        (Image.new("L", (10, 20), 255), r"10 x 20 pixels, but its picture .* has 30 x 20"),
    ],
)
def test_a_mask_that_is_none_says_why(tmp_path: Path, image: Image.Image, message: str) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "picture.png")
    image.save(tmp_path / "mask.png")
    with pytest.raises(DataError, match=message):
        MaskFile(tmp_path / "mask.png", tmp_path, PictureFile(tmp_path / "picture.png", tmp_path)).open()


def test_the_head_of_a_picture_tells_its_size_or_what_is_wrong(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    assert PictureFile(tmp_path / "a.png", tmp_path).size() == (30, 20)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not a readable picture"):
        PictureFile(tmp_path / "b.png", tmp_path).size()
    with pytest.raises(DataError, match="missing"):
        PictureFile(tmp_path / "c.png", tmp_path).size()


# bad input


def listed(folder: Path, line: str) -> Path:
    """The folder with one more line in its list of training pictures."""
    file = folder / "Info" / "CAM_train.txt"
    file.write_text(f"{file.read_text()}\n{line}\n")
    return folder


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("COD10K-CAM-1-Group-3-Cat-99.jpg 1", "missing picture", r"CAM_train.txt, line 11: .*Cat-99\.jpg is missing"),
        ("COD10K-CAM-1-Group-3-Cat-0.jpg 1", "duplicate id", "line 11: .*listed twice"),
        ("COD10K-NonCAM-3-Flying-99901.jpg 0", "wrong name", "line 11: .*NonCAM-3-Flying-99901"),
        ("../../secret.jpg 1", "wrong name", "line 11"),
        ("COD10K-CAM-1-Aquatic-x.jpg", "wrong name", "line 11"),
    ],
)
def test_a_bad_line_is_an_error_or_skipped(tmp_path: Path, line: str, kind: str, message: str) -> None:
    folder = listed(cod10k_folder(tmp_path), line)
    with pytest.raises(DataError, match=message):
        cod10k(folder, dev=0)
    findings = Findings("skip")
    data = cod10k(folder, findings=findings, dev=0)
    assert findings.counts == {kind: 1}
    assert len(data.splits["train"]) == 2 * 9


def test_a_missing_mask_is_named_and_no_fault(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    (folder / "Train" / "GT_Object" / "COD10K-CAM-1-Group-3-Cat-0.png").unlink()
    findings = Findings()
    first, _, third = cod10k(folder, findings=findings, dev=0).splits["train"][:3]
    assert "mask" not in first.facts
    assert "mask" in third.facts
    assert findings.absent == [
        "masks of 1 of 9 train pictures; the first is Train/GT_Object/COD10K-CAM-1-Group-3-Cat-0.png"
    ]


def test_without_its_lists_the_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path)
    expected = {example.id for example in cod10k(folder, dev=0).splits["train"]}
    shutil.rmtree(folder / "Info")
    (folder / "Train" / "Image" / "COD10K-NonCAM-3-Flying-99901.jpg").write_bytes(b"")
    findings = Findings()
    data = cod10k(folder, findings=findings, dev=0)
    assert {example.id for example in data.splits["train"]} == expected
    assert data.facts["left_out"]["other pictures in the folders"] == 1
    assert len(findings.absent) == 2


def test_a_split_that_is_not_there_is_absent_and_no_fault(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path, "sinet")
    shutil.rmtree(folder / "TrainDataset")
    findings = Findings()
    assert list(cod10k(folder, findings=findings).splits) == ["test"]
    assert any("split train" in line for line in findings.absent)


def test_a_folder_without_cod10k_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Train/Image.*TestDataset/COD10K/Imgs"):
        cod10k(tmp_path)
    (tmp_path / "TestDataset").mkdir()
    with pytest.raises(DataError, match="no split at all"):
        cod10k(tmp_path)
    with pytest.raises(DataError, match="did you mean 'sinet'"):
        cod10k(tmp_path, layout="sinett")
    with pytest.raises(DataError, match="dev is the share"):
        cod10k(tmp_path, dev=1.0)


def test_a_picture_that_leads_out_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    folder = cod10k_folder(tmp_path / "set")
    picture = folder / "Train" / "Image" / "COD10K-CAM-1-Group-3-Cat-0.jpg"
    picture.rename(tmp_path / "outside.jpg")
    picture.symlink_to(tmp_path / "outside.jpg")
    content = cod10k(folder, dev=0).splits["train"][0].content["image"]
    assert isinstance(content, PictureFile)
    with pytest.raises(DataError, match="leads outside"):
        content.open()


# the real lists and pictures


@needs_lists
def test_the_real_lists_have_their_known_sizes(tmp_path: Path) -> None:
    shutil.copytree(SHARED / "cod10k_info" / "Info", tmp_path / "Info")
    for folder in ("Train/Image", "Test/Image"):
        (tmp_path / folder).mkdir(parents=True)
    findings = Findings("skip")
    data = cod10k(tmp_path, findings=findings)
    left_out = data.facts["left_out"]
    assert findings.counts["missing picture"] + left_out["animal without a name"] == 3_039 + 2_026
    assert set(findings.counts) == {"missing picture"}
    assert left_out["pictures in which nothing hides (NonCAM)"] == 2_960 + 1_974
    assert not data.splits


@needs_pictures
def test_the_real_pictures_become_a_balanced_task(tmp_path: Path) -> None:
    (tmp_path / "Test").mkdir()
    for name in ("Image", "GT_Object"):
        shutil.copytree(SHARED / "cod10k_sample" / name, tmp_path / "Test" / name)
    findings = Findings()
    data = cod10k(tmp_path, findings=findings)
    counts = names_by_label(data, "test")
    assert counts["entailment"] == counts["contradiction"]
    assert len(data.splits["test"]) == 2 * 30
    assert any("masks of 29 of 30 test pictures" in line for line in findings.absent)
    masked = [example.facts["mask"] for example in data.splits["test"] if "mask" in example.facts]
    assert 0 < np.mean(masked[0].open()) < 1
