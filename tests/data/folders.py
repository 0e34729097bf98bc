"""Folders in the form of SNLI-VE, Hateful Memes, VQA v2 and VCR, made up: few rows, every peculiarity of the format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Research-only pieces of the real sets, where they lie beside the checkout."""

COLOURS = ("red", "green", "blue", "yellow", "white", "black")


def draw(file: Path, colour: str = "red", size: tuple[int, int] = (24, 16)) -> Path:
    """A small picture of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)
    return file


def write_lines(file: Path, records: Iterable[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def change_line(file: Path, line: int, change: Callable[[dict[str, Any]], Any] | str) -> None:
    """Rewrite one line, from 1: by a function that changes its record in place, or with a text."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if isinstance(change, str):
        lines[line - 1] = change
    else:
        record = json.loads(lines[line - 1])
        change(record)
        lines[line - 1] = json.dumps(record)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def change_json(file: Path, change: Callable[[Any], Any]) -> None:
    """Rewrite a document by a function that changes it in place."""
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def snli_ve_folder(path: Path, *, old: bool = False) -> Path:
    """Three splits of three pictures each; train also has a pair without a label and one on Visual Genome."""
    for part, split in enumerate(("train", "dev", "test")):
        pairs = [_pair(1000 * part + 100 + row // 3, row, old=old) for row in range(9)]
        if split == "train":
            pairs += [{**pairs[0], "pairID": "100.jpg#9r9x", "gold_label": "-"}]
            pairs += [{**pairs[0], "pairID": "vg_77r1e", "Flickr30K_ID": "vg_77"}]
        write_lines(path / f"snli_ve_{split}.jsonl", pairs)
        for place in range(3):
            draw(path / "flickr30k_images" / f"{1000 * part + 100 + place}.jpg", COLOURS[place])
    return path


def _pair(picture: int, row: int, *, old: bool) -> dict[str, Any]:
    label = ("entailment", "neutral", "contradiction")[row % 3]
    key, name = ("Flikr30kID", f"{picture}.jpg") if old else ("Flickr30K_ID", f"{picture}")
    return {
        key: name,
        "annotator_labels": [label],
        "captionID": f"{picture}.jpg#0",
        "gold_label": label,
        "pairID": f"{picture}.jpg#0r{row}{label[0]}",
        "sentence1": "The caption tells the answer.",
        "sentence2": f"Plate {row} is {COLOURS[row % 3]}.",
    }


def hateful_memes_folder(path: Path, *, first_release: bool = False, labelled_test: bool = True) -> Path:
    """Both releases; dev_seen and dev_unseen share memes, and one id has a leading zero."""
    sizes = {"train": 8, "dev": 4, "test": 4} if first_release else {"train": 8, "dev_seen": 4, "dev_unseen": 5}
    if not first_release:
        sizes |= {"test_seen": 4, "test_unseen": 6}
    starts = {"train": 1234, "dev": 20000, "test": 30000}
    data = path / "data"
    for split, size in sizes.items():
        shift = 10000 if split == "test_unseen" else 0
        memes = [_meme(starts[split.split("_")[0]] + shift + row, row) for row in range(size)]
        if split.startswith("test") and not labelled_test:
            memes = [{key: value for key, value in meme.items() if key != "label"} for meme in memes]
        write_lines(data / f"{split}.jsonl", memes)
        for row, meme in enumerate(memes):
            draw(data / meme["img"], COLOURS[row % 6])
    return path


def _meme(number: int, row: int) -> dict[str, Any]:
    name = f"{number:05d}"
    return {"id": name if row % 2 else number, "img": f"img/{name}.png", "label": row % 2, "text": f"soup of day {row}"}


def vqa_v2_folder(path: Path, *, subsets: tuple[str, ...] = ("train2014", "val2014", "test2015")) -> Path:
    """Sixty questions on twelve pictures per subset; answers are common, disputed, or outside of any vocabulary."""
    for part, subset in enumerate(subsets):
        pictures = [1000 * (part + 1) + place for place in range(12)]
        questions = [_question(pictures[row // 5], row) for row in range(60)]
        head = {"info": {"version": "2.0"}, "task_type": "Open-Ended", "data_type": "mscoco", "data_subtype": subset}
        file = path / f"v2_OpenEnded_mscoco_{subset}_questions.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**head, "questions": questions}))
        if subset != "test2015":
            annotations = [_annotation(question, row) for row, question in enumerate(questions)]
            file = path / f"v2_mscoco_{subset}_annotations.json"
            file.write_text(json.dumps({**head, "annotations": annotations}))
        for place, picture in enumerate(pictures):
            draw(path / subset / f"COCO_{subset}_{picture:012d}.jpg", COLOURS[place % 6])
    return path


def _question(picture: int, row: int) -> dict[str, Any]:
    text = ("Is the lamp on?", "How many lamps are there?", "What is beside the lamp?")[row % 3]
    return {"image_id": picture, "question": text, "question_id": picture * 1000 + row % 5}


def _annotation(question: dict[str, Any], row: int) -> dict[str, Any]:
    kind = ("yes/no", "number", "other")[row % 3]
    given = {
        "yes/no": ["yes"] * 10,
        "number": ["two"] * 7 + ["2"] + ["3"] * 2,
        "other": ["the cup"] * 6 + ["a cup."] * 2 + ["mug"] * 2 if row % 4 else [f"thing {row}"] * 10,
    }[kind]
    answers = [
        {"answer": answer, "answer_confidence": "yes", "answer_id": place + 1} for place, answer in enumerate(given)
    ]
    return {
        "question_type": ("is the", "how many", "what is")[row % 3],
        "multiple_choice_answer": given[0],
        "answers": answers,
        "image_id": question["image_id"],
        "answer_type": kind,
        "question_id": question["question_id"],
    }


def vcr_folder(path: Path) -> Path:
    """Three splits; the test has no labels, file names hold an @, a box reaches beyond its picture."""
    for part, (split, size) in enumerate((("train", 6), ("val", 4), ("test", 3))):
        records = [_still(split, part, row) for row in range(size)]
        if split == "test":
            for record in records:
                del record["answer_label"], record["rationale_label"]
        write_lines(path / f"{split}.jsonl", records)
        for row, record in enumerate(records):
            draw(path / "vcr1images" / record["img_fn"], COLOURS[row % 6], size=(60, 40))
            metadata = path / "vcr1images" / record["metadata_fn"]
            boxes = [[2.5, 3.0, 20.0, 38.0, 0.99], [-4.0, 1.0, 30.0, 44.5, 0.98], [25.0, 5.0, 59.0, 30.0, 0.6]]
            names = record["objects"]
            metadata.write_text(
                json.dumps({"boxes": boxes, "segms": [[], [], []], "names": names, "width": 60, "height": 40})
            )
    return path


def _still(split: str, part: int, row: int) -> dict[str, Any]:
    name = f"film_{part}/film_{part}_00.0{row}.10-00.0{row}.12@{row}"
    return {
        "movie": f"film_{part}",
        "objects": ["person", "person", "lamp"],
        "img_fn": f"{name}.jpg",
        "metadata_fn": f"{name}.json",
        "question_orig": "Why does 1 hold 3?",
        "question": ["Why", "does", [0], "hold", [2], "?"],
        "answer_choices": [[[0, 1], "like", "it", ",", "option", str(choice), "."] for choice in range(4)],
        "answer_label": row % 4,
        "rationale_choices": [[[1], "does", "n't", "see", ",", "reason", str(choice), "."] for choice in range(4)],
        "rationale_label": (row + 1) % 4,
        "img_id": f"{split}-{row}",
        "annot_id": f"{split}-{row}",
    }
