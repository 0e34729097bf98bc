from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data.folders import SHARED, change_line, draw, snli_ve_folder

from meq.data import DataError, Findings, open_data
from meq.data.snli_ve import LABELS, OFFICIAL_SIZES, PAPER_DEV, snli_ve

VISION = SHARED / "format_samples" / "fixtures_allennlp" / "vision"
needs_real = pytest.mark.skipif(not (SHARED / "snli_ve").is_dir(), reason="no shared/data/snli_ve beside the checkout")


@pytest.mark.parametrize("old", [False, True], ids=["second release", "first release"])
def test_both_releases_are_read(tmp_path: Path, old: bool) -> None:
    data = snli_ve(snli_ve_folder(tmp_path, old=old))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 9, "dev": 9, "test": 9}
    example = data.splits["dev"][4]
    assert example.content["image"].open().size == (24, 16)
    assert data.labels[int(example.target)] == "neutral"
    assert (data.head, data.metric.name) == ("classes", "accuracy")


def test_the_caption_is_never_an_input(tmp_path: Path) -> None:
    for split in snli_ve(snli_ve_folder(tmp_path)).splits.values():
        for example in split:
            assert set(example.content) == {"image", "text"}
            assert example.content["text"].startswith("Plate")


def test_pairs_without_a_label_and_on_visual_genome_are_counted_not_found_fault_with(tmp_path: Path) -> None:
    findings = Findings()
    data = snli_ve(snli_ve_folder(tmp_path), findings=findings)
    assert data.facts["left_out"] == {"pairs without a gold label": 1, "pairs on Visual Genome": 1}
    assert not findings
    assert data.facts["dev"] == PAPER_DEV
    assert data.facts["official_sizes"] == OFFICIAL_SIZES == {"train": 529_527, "dev": 17_858, "test": 17_901}


def test_the_files_may_lie_in_data(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path / "root")
    (root / "data").mkdir()
    for file in [*root.glob("*.jsonl"), root / "flickr30k_images"]:
        file.rename(root / "data" / file.name)
    assert len(snli_ve(root).splits["train"]) == 9


def test_a_split_nobody_has_is_absent_and_no_fault(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path)
    (root / "snli_ve_test.jsonl").unlink()
    findings = Findings()
    assert set(open_data("snli-ve", root, findings=findings).splits) == {"train", "dev"}
    assert findings.absent == ["test: no snli_ve_test.jsonl"]


def test_a_folder_without_the_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for snli_ve_train\.jsonl, data/snli_ve_train\.jsonl"):
        snli_ve(tmp_path)
    root = snli_ve_folder(tmp_path)
    shutil.rmtree(root / "flickr30k_images")
    with pytest.raises(DataError, match="the folder of pictures not found; looked for flickr30k_images"):
        snli_ve(root)


BAD = {
    "wrong JSON": "{'pairID': 1}",
    "missing key": lambda record: record.pop("sentence2"),
    "wrong label": lambda record: record.update(gold_label="maybe"),
    "missing picture": lambda record: record.update(Flickr30K_ID="31337"),
    "empty text": lambda record: record.update(sentence2="  "),
    "wrong type": lambda record: record.update(sentence2=None),
    "duplicate id": lambda record: record.update(pairID="1100.jpg#0r0e"),
    "path outside": lambda record: record.update(Flickr30K_ID="../flickr30k_images/1100"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path, kind: str) -> None:
    root = snli_ve_folder(tmp_path)
    change_line(root / "snli_ve_dev.jsonl", 3, BAD[kind])
    with pytest.raises(DataError, match=r"snli_ve_dev\.jsonl, line 3: "):
        snli_ve(root)
    findings = Findings("skip")
    assert len(snli_ve(root, findings=findings).splits["dev"]) == 8
    assert findings.counts == {kind: 1}


def test_a_record_without_either_spelling_of_the_picture_is_reported(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path)
    change_line(root / "snli_ve_dev.jsonl", 2, lambda record: record.pop("Flickr30K_ID"))
    with pytest.raises(DataError, match="no 'Flickr30K_ID', and no 'Flikr30kID'"):
        snli_ve(root)


def test_pictures_of_any_name_are_read(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path)
    name = "vögel @ dawn 🦜"
    draw(root / "flickr30k_images" / f"{name}.jpg", size=(30, 10))
    change_line(root / "snli_ve_dev.jsonl", 1, lambda record: record.update(Flickr30K_ID=name))
    assert snli_ve(root).splits["dev"][0].content["image"].open().size == (30, 10)


def test_a_symlink_that_leaves_the_root_is_refused_when_it_is_read_and_when_it_is_opened(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path / "root")
    picture = root / "flickr30k_images" / "1100.jpg"
    read = snli_ve(root).splits["dev"]
    picture.unlink()
    picture.symlink_to(draw(tmp_path / "elsewhere.jpg"))
    with pytest.raises(DataError, match=r"1100\.jpg: leads outside"):
        read[0].content["image"].open()
    with pytest.raises(DataError, match=r"\.json.*1100.* is a symlink that leads outside"):
        snli_ve(root)


def test_a_file_without_usable_rows_is_absent(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path)
    (root / "snli_ve_test.jsonl").write_text("\n")
    findings = Findings()
    assert "test" not in snli_ve(root, findings=findings).splits
    assert findings.absent == ["test: its file holds no row that can be used"]


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    root = snli_ve_folder(tmp_path)
    before = snli_ve(root).fingerprint()
    assert snli_ve(root).fingerprint() == before
    draw(root / "flickr30k_images" / "1100.jpg", "white")
    assert snli_ve(root).fingerprint() != before


@needs_real
def test_the_real_subset_has_its_counts() -> None:
    data = snli_ve(SHARED / "snli_ve")
    counts = {name: Counter(LABELS[row.label] for row in split.rows) for name, split in data.splits.items()}
    assert counts["train"] == {"entailment": 1435, "neutral": 1404, "contradiction": 1401}
    assert counts["dev"] == {"contradiction": 1260, "entailment": 1188, "neutral": 769}
    assert [len({row.picture for row in data.splits[name].rows}) for name in ("train", "dev")] == [1313, 233]
    assert data.splits["dev"][0].content["image"].open().size == (160, 160)


def copied(tmp_path: Path, records: list[dict[str, Any]], pictures: Path) -> Path:
    """Real records under the official names, in a folder that is gone after the test."""
    shutil.copytree(pictures, tmp_path / "flickr30k_images")
    (tmp_path / "snli_ve_dev.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@needs_real
@pytest.mark.parametrize("release", ["first", "second"])
def test_real_records_of_both_releases_are_read(tmp_path: Path, release: str) -> None:
    sample = SHARED / "snli_ve" / "cpuknows_sample"
    file = sample / "sample_data.jsonl" if release == "first" else VISION / "visual_entailment" / "sample_pairs.jsonl"
    pictures = sample if release == "first" else VISION / "images" / "visual_entailment"
    if not file.exists():
        pytest.skip(f"no {file.name} beside the checkout")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    dev = snli_ve(copied(tmp_path, records, pictures)).splits["dev"]
    assert [example.id for example in dev] == [record["pairID"] for record in records]
    assert [LABELS[int(example.target)] for example in dev] == [record["gold_label"] for record in records]
    assert all(min(example.content["image"].open().size) > 100 for example in dev)
