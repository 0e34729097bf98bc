from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.table_cases import as_csv, as_jsonl, as_parquet, contents, photos, pictured, simple, skipped
from PIL import Image

from meq.data.content import PictureFile
from meq.data.contract import collate
from meq.data.findings import DataError, Findings
from meq.data.request import DataRequest, parse_options
from meq.data.splitting import torn_apart
from meq.data.table import TableSchema, new_rows, table
from meq.data.transforms import standardise
from meq.models import MutualEquilibrium
from meq.objectives.tasks import task_loss

MOSI = Path(__file__).parents[2].parent / "shared" / "data" / "mosi" / "mosi_utterance_train_dev.npz"


def test_a_csv_of_photos_and_captions_becomes_a_data_set(tmp_path: Path) -> None:
    data = table(photos(tmp_path), images="photo", texts="caption", label="y")
    assert {name: x.kind for name, x in data.modalities.items()} == {"photo": "image", "caption": "text"}
    assert list(data.labels) == ["a", "b"]
    assert (data.head, data.metric.name) == ("classes", "accuracy")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 160, "dev": 20, "test": 20}
    example = data.splits["train"][0]
    picture = example.content["photo"]
    assert isinstance(picture, PictureFile)
    assert picture.open().size == (4, 3)
    assert example.content["caption"] == f"photo {example.facts['line'] - 2}"
    assert example.id == f"t-{example.facts['line']}"


def test_no_photo_is_in_two_splits(tmp_path: Path) -> None:
    data = table(photos(tmp_path), images="photo", texts="caption", label="y")
    pairs = [(str(e.content["photo"]), name) for name, split in data.splits.items() for e in split]
    assert torn_apart([photo for photo, _ in pairs], [name for _, name in pairs]) == []
    assert data.facts["in several splits"] == {"photo": 0}


def test_the_same_photo_written_in_two_ways_is_one_group(tmp_path: Path) -> None:
    path = photos(tmp_path)
    text = path.read_text()
    other = text.replace("img/1.png,photo 41", "./img//1.png,photo 41")
    assert other != text
    path.write_text(other)
    data = table(path, images="photo", texts="caption", label="y")
    where = {name for name, split in data.splits.items() for e in split if str(e.content["photo"]).endswith("/1.png")}
    assert len(where) == 1


def test_a_given_group_is_kept_together_and_other_leaks_are_counted(tmp_path: Path) -> None:
    path = photos(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},who", *(f"{line},{n % 50}" for n, line in enumerate(lines[1:]))]))
    data = table(path, images="photo", texts="caption", label="y", group="who")
    assert data.facts["split by"]["group"] == "who"
    assert data.facts["in several splits"]["who"] == 0
    assert data.facts["in several splits"]["photo"] > 0


def test_the_order_of_the_rows_changes_no_split(tmp_path: Path) -> None:
    path = photos(tmp_path)
    header, *lines = path.read_text().splitlines()
    options: dict[str, Any] = {"images": "photo", "texts": "caption", "label": "y", "seed": 5}
    before = {e.content["caption"]: name for name, split in table(path, **options).splits.items() for e in split}
    random.Random(1).shuffle(lines)
    path.write_text("\n".join([header, *lines]))
    after = {e.content["caption"]: name for name, split in table(path, **options).splits.items() for e in split}
    assert before == after


def test_rows_without_a_group_go_by_their_ids_whatever_their_order(tmp_path: Path) -> None:
    records = [{"id": n, "t": f"word {n}", "y": n % 2} for n in range(50)]
    before = table(as_jsonl(tmp_path, records), texts="t", label="y", id="id")
    after = table(as_jsonl(tmp_path, records[::-1]), texts="t", label="y", id="id")
    assert {e.id for e in before.splits["dev"]} == {e.id for e in after.splits["dev"]}


def test_the_three_formats_give_the_same_data(tmp_path: Path) -> None:
    records = simple(v=[[n, 0.5, -n] for n in range(6)])
    strings = [record | {"v": json.dumps(record["v"])} for record in records]
    paths = as_csv(tmp_path, strings), as_jsonl(tmp_path, records), as_parquet(tmp_path, records)
    sets = [table(path, texts="t", vectors="v", label="y", split="split") for path in paths]
    expected = [torch.tensor([n, 0.5, -n]) for n in range(6)]
    for data in sets:
        assert all(torch.equal(x, y) for x, y in zip(contents(data, "v"), expected, strict=True))
        assert contents(data, "t") == contents(sets[0], "t")
        assert data.modalities == sets[0].modalities


@pytest.mark.parametrize(("task", "shape"), [("classes", (2,)), ("labels", (3,)), ("score", (1,))])
def test_every_task_goes_through_a_model_its_loss_and_its_metrics(tmp_path: Path, task: str, shape: Any) -> None:
    labels = {"classes": [0, 1], "labels": [["x", "y"], ["z"]], "score": [0.5, -1]}[task] * 3
    records = simple(y=labels, v=[[n, 1] for n in range(6)], w=[[[1, 2, 3]] * (n + 1) for n in range(6)])
    data = table(as_jsonl(tmp_path, records), vectors=["v", "w"], label="y", split="split", task=task)
    batch = collate(data.splits["train"], data.widths)
    model = MutualEquilibrium(data.widths, len(data.labels), 8, heads=2, head=data.head, head_width=8)
    logits = model(batch.features, batch.masks).logits
    assert logits.shape == (2, *shape)
    task_loss(data.head)(logits, batch.target).sum().backward()
    for metric in (data.metric, *data.also):
        assert metric(logits.detach(), batch.target) <= 1


def test_a_row_without_any_modality_or_without_a_label_is_a_finding(tmp_path: Path) -> None:
    records = simple() + simple(t=["", "b", "c", "d", "e", "f"], y=["no", "", "nan", None, "no", "yes"])
    expected = [("empty row", 8), ("missing label", 9), ("missing label", 10), ("missing label", 11)]
    found, data = skipped(as_csv(tmp_path, records), texts="t", label="y", split="split")
    assert found == expected
    assert data.facts["rows"] == 8
    with pytest.raises(DataError, match=r"t\.csv, line 8: every modality is missing"):
        table(tmp_path / "t.csv", texts="t", label="y", split="split")


def test_a_modality_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'v' is empty in every row"):
        table(as_csv(tmp_path, simple(v=[""] * 6)), texts="t", vectors="v", label="y", split="split")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"texts": "tt"}, "no column 'tt': did you mean 't'"),
        ({"texts": "t", "label": "spilt"}, "did you mean 'split'"),
        ({"texts": "t", "group": "who"}, "no column 'who'"),
        ({"texts": "t", "id": "*"}, "not a pattern"),
        ({"texts": "*"}, "only vectors are joined"),
        ({}, "name at least one column"),
        ({"texts": ["t", "y"]}, "'y' is the label"),
        ({"vectors": "*"}, "leaves no name"),
        ({"texts": ["t", "t"]}, "second modality called 't'"),
        ({"texts": "t", "vectors": "t*"}, "second modality called 't'"),
        ({"texts": "t", "task": "clases"}, "did you mean 'classes'"),
        ({"texts": "t", "fractions": {"train": 1.0}, "split": None}, "no 'dev' split.*fractions"),
    ],
)
def test_wrong_columns_and_options_are_errors_with_advice(tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        table(as_csv(tmp_path, simple()), **({"label": "y", "split": "split"} | options))


def test_a_mistyped_option_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'texts'"):
        table(as_csv(tmp_path, simple()), text="t", label="y")


def test_ids_are_unique_and_given(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple(id=[f"a{n}" for n in range(6)]) + simple(id=["a0", "", "b", "c", "d", "e"]))
    found, data = skipped(path, texts="t", label="y", split="split", id="id")
    assert found == [("duplicate id", 8), ("missing id", 9)]
    assert [example.id for example in data.splits["train"]] == ["a0", "a1"]
    with pytest.raises(DataError, match="line 8: the id 'a0' was used before, in line 2"):
        table(path, texts="t", label="y", split="split", id="id")


def test_a_split_column_may_use_the_usual_names_and_others_are_findings(tmp_path: Path) -> None:
    good = simple(split=["Train", "TRAINING", "val", "Validation", "test", "valid"])
    path = as_csv(tmp_path, good + simple(split=["holdout", "", "tset", "dev", "dev", "dev"]))
    found, data = skipped(path, texts="t", label="y", split="split")
    assert found == [("wrong split", 8), ("wrong split", 9), ("wrong split", 10)]
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "dev": 6, "test": 1}
    with pytest.raises(DataError, match="column 'split' says 'tset': did you mean 'test'"):
        table(as_csv(tmp_path, simple(split=["tset"] * 6)), texts="t", label="y", split="split")


def test_train_and_dev_must_be_there_and_a_test_split_may_be_absent(tmp_path: Path) -> None:
    findings = Findings()
    data = table(
        as_csv(tmp_path, simple(split=["train"] * 3 + ["dev"] * 3)),
        texts="t",
        label="y",
        split="split",
        findings=findings,
    )
    assert list(data.splits) == ["train", "dev"]
    assert findings.absent == ["test: no row is of this split"]
    for name, cells in (("dev", ["train", "test"] * 3), ("train", ["dev", "test"] * 3)):
        with pytest.raises(DataError, match=f"there is no '{name}' split"):
            table(as_csv(tmp_path, simple(split=cells)), texts="t", label="y", split="split")


def test_dev_is_taken_from_train_where_the_column_of_splits_names_none(tmp_path: Path) -> None:
    records = [
        {"t": f"word {n}", "y": "ab"[n % 2], "who": f"person {n // 4}", "split": "train" if n < 72 else "test"}
        for n in range(90)
    ]
    path, asked = as_csv(tmp_path, records), {"texts": "t", "label": "y", "split": "split", "group": "who"}
    findings = Findings()
    data = table(path, **asked, findings=findings)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 64, "dev": 8, "test": 18}
    assert findings.notes == [
        "column 'split' names no dev split, by which the epoch is chosen: 8 of the rows of train are taken for it (a "
        "share of 0.11, seed 0)"
    ]
    assert data.facts["in several splits"] == {"who": 0}, "nobody is in two splits"
    lines = {example.facts["line"] for example in data.splits["dev"]}
    assert lines == {example.facts["line"] for example in table(path, **asked).splits["dev"]}
    assert lines != {example.facts["line"] for example in table(path, **asked, seed=1).splits["dev"]}
    assert len(table(path, **asked, fractions="0.5,0.25,0.25").splits["dev"]) == 24, "the shares of train and dev"


def test_photos_that_a_given_split_shares_are_counted(tmp_path: Path) -> None:
    path = pictured(tmp_path)
    assert table(path, images="p", label="y", split="split").facts["in several splits"] == {"p": 1}


def test_too_few_groups_for_the_splits_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing is left for"):
        table(as_csv(tmp_path, simple(who=["x"] * 6)), texts="t", label="y", group="who")


def test_a_table_without_a_usable_row_is_an_error_that_counts_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no row can be used; 6 were left out: \{'missing label': 6\}"):
        skipped(as_csv(tmp_path, simple(y=[""] * 6)), texts="t", label="y")
    (tmp_path / "t.csv").write_text("t,y\n")
    with pytest.raises(DataError, match="no row can be used"):
        table(tmp_path / "t.csv", texts="t", label="y")


def test_facts_can_be_written_as_json_and_name_no_folder(tmp_path: Path) -> None:
    facts = table(photos(tmp_path), images="photo", texts="caption", label="y").facts
    text = json.dumps(facts)
    assert json.loads(text) == facts
    assert str(tmp_path) not in text
    assert facts["split by"] == {"fractions": {"train": 0.8, "dev": 0.1, "test": 0.1}, "group": "photo", "seed": 0}


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = photos(tmp_path)
    before = table(path, images="photo", label="y").fingerprint()
    assert table(path, images="photo", label="y").fingerprint() == before
    Image.new("RGB", (4, 3), (0, 9, 0)).save(tmp_path / "img" / "0.png")
    assert table(path, images="photo", label="y").fingerprint() != before


@pytest.mark.skipif(not MOSI.is_file(), reason=f"CMU-MOSI is not there: {os.path.join(*MOSI.parts[-4:])}")
@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_cmu_mosi_is_a_table_of_three_modalities(tmp_path: Path, write: Any) -> None:
    with np.load(MOSI, allow_pickle=False) as arrays:
        names = ("id", "text_feat", "audio_feat", "video_feat", "label", "mode")
        rows = zip(*(arrays[name].tolist() for name in names), strict=True)
        records = [dict(zip(names, row, strict=True)) for row in rows]
    lost = {"mode": "", "label": float("nan")}
    path = write(tmp_path, records + [records[n] | {"id": f"lost {n}"} | lost for n in range(4)])
    findings = Findings(on_bad="skip")
    vectors = ["text_feat", "audio_feat", "video_feat"]
    data = table(path, vectors=vectors, label="label", id="id", split="mode", task="score", findings=findings)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1281, "dev": 229}
    assert findings.counts == Counter({"missing label": 4})
    assert data.widths == {"text_feat": 100, "audio_feat": 73, "video_feat": 100}
    assert data.facts["missing cells"] == dict.fromkeys(vectors, 0)
    scaled, found = standardise(data)
    batch = collate(scaled.splits["train"], scaled.widths)
    for name in vectors:
        assert abs(batch.features[name].mean().item()) < 1e-3
        assert len(found.mean[name]) == data.widths[name]


# -- rows, and where none can be used ----------------------------------------------------------------------------------


def rows(folder: Path, photo: Any, **others: Any) -> Path:
    """Forty rows; what each holds is made from its number."""
    caption = others.get("caption", lambda n: f"photo {n}")
    label = others.get("label", lambda n: "ab"[n % 2])
    return as_csv(folder, [{"photo": photo(n), "caption": caption(n), "y": label(n)} for n in range(40)], "bad.csv")


CASES = {
    "root": (lambda n: f"{n}.png", r"'0.png' lies in .*img: give that as root"),
    "deeper": (lambda n: f"here/img/{n}.png", r"lies in .*: give that as root"),
    "ending": (lambda n: f"img/{n}", r"the names lack their ending: there is a picture 'img/0.png'"),
    "addresses": (lambda n: f"https://example.org/{n}.png", "holds addresses: download the pictures first"),
    "absolute": (lambda n: f"/nowhere/at/all/{n}.png", r"outside of .*: give /nowhere/at/all as root"),
    "windows": (lambda n: f"D:\\photos\\{n}.png", "absolute and lie outside"),
    "up": (lambda n: f"../{n}.png", r"go up with '\.\.'"),
    "swapped": (lambda n: f"a photo of {n} cats.", "read like texts, not like paths: are the columns swapped"),
    "nowhere": (lambda n: f"none/{n}.jpg", r"is .* the folder that the paths in 'photo' start from"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_table_of_bad_rows_says_why_and_what_to_do(case: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    photos(here)
    photo, remedy = CASES[case]
    path = rows(here, photo)
    with pytest.raises(DataError, match=remedy) as caught:
        skipped(path, images="photo", texts="caption", label="y")
    head, *findings, last, _ = str(caught.value).splitlines()
    assert "no row can be used; 40 were left out" in head
    assert [f"line {line}" in finding for line, finding in zip((2, 3, 4), findings, strict=True)] == [True] * 3
    assert last == "  and 37 more"
    assert max(map(len, str(caught.value).splitlines())) <= 600
    with pytest.raises(DataError, match=remedy) as caught:  # also where bad rows are not skipped
        table(path, images="photo", texts="caption", label="y")
    assert "line 2" in str(caught.value)


def test_rows_without_labels_ask_for_the_column_of_labels(tmp_path: Path) -> None:
    photos(tmp_path)
    with pytest.raises(DataError, match="is 'y' the column of labels") as caught:
        skipped(rows(tmp_path, lambda n: f"img/{n}.png", label=lambda n: ""), images="photo", label="y")
    assert "line 2: there is no label in column 'y'" in str(caught.value)


def test_new_rows_that_are_all_bad_say_why_too(tmp_path: Path) -> None:
    photos(tmp_path)
    columns, kinds = {"photo": ["photo"]}, {"photo": "image"}
    known = TableSchema(columns=columns, kinds=kinds, widths={}, head="classes", labels=("a", "b"))
    with pytest.raises(DataError, match="there is no row to read in it; 40 were left out") as caught:
        new_rows(rows(tmp_path, lambda n: f"{n}.png"), known, findings=Findings("skip"))
    assert "line 4" in str(caught.value)
    assert "give that as root" in str(caught.value)


def test_a_folder_too_many_in_the_paths_is_noticed(tmp_path: Path) -> None:
    photos(tmp_path)
    with pytest.raises(DataError, match=r"'0.png' lies in .*img itself: leave the folder out of the paths"):
        table(rows(tmp_path, lambda n: f"old/{n}.png"), images="photo", label="y", root=tmp_path / "img")


def test_advice_on_the_root_is_not_given_where_some_pictures_were_found(tmp_path: Path) -> None:
    photos(tmp_path)
    path = rows(tmp_path, lambda n: f"img/{n}.png" if n < 30 else f"{n}.png")
    with pytest.raises(DataError, match="line 32: ") as caught:
        table(path, images="photo", label="y")
    assert "give that as root" not in str(caught.value)


def test_absolute_paths_below_the_root_are_the_relative_ones(tmp_path: Path) -> None:
    photos(tmp_path)
    relative = table(rows(tmp_path, lambda n: f"img/{n}.png"), images="photo", label="y")
    absolute = table(rows(tmp_path, lambda n: tmp_path / "img" / f"{n}.png"), images="photo", label="y")
    assert absolute.fingerprint() == relative.fingerprint()
    (tmp_path / "link").symlink_to(tmp_path / "img", target_is_directory=True)
    linked = rows(tmp_path, lambda n: tmp_path / "img" / f"{n}.png")
    assert table(linked, images="photo", label="y", root=tmp_path / "link").facts["rows"] == 40
    up = rows(tmp_path, lambda n: f"{tmp_path}/img/../../secret/{n}.png")
    with pytest.raises(DataError, match=r"absolute path that leads outside of .*; set root to a folder that holds it"):
        table(up, images="photo", label="y")


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("0.6,0.2,0.2", (24, 8, 8)),
        ("[0.6, 0.2, 0.2]", (24, 8, 8)),
        ('{"train": 0.6, "dev": 0.4}', (24, 16, 0)),
        ("0.6, 0.4", (24, 16, 0)),
    ],
)
def test_fractions_are_set_on_the_command_line(said: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    options = parse_options([f"fractions={said}"])
    data = DataRequest(data=str(photos(tmp_path, rows=40)), images=("photo",), label="y", options=options).open()
    assert tuple(len(data.splits.get(name, ())) for name in ("train", "dev", "test")) == sizes


@pytest.mark.parametrize("said", ["0.6", "0.6,x", "1,2,3,4", "0.6,0.6", "true,0.4", "[0.5, null]", "{}", "7", '["a"]'])
def test_fractions_that_are_none_are_a_sentence(said: str, tmp_path: Path) -> None:
    asked = DataRequest(
        data=str(photos(tmp_path, rows=40)), images=("photo",), label="y", options=parse_options([f"fractions={said}"])
    )
    with pytest.raises(DataError, match="fractions"):
        asked.open()


def test_options_of_the_wrong_kind_are_sentences(tmp_path: Path) -> None:
    path = str(photos(tmp_path, rows=40))
    for setting, said in (
        ("seed=x", "the option 'seed' of a table must be a whole number, got 'x'"),
        ("id=7", "no column '7'"),
        ("delimiter=12", "one character"),
    ):
        asked = DataRequest(data=path, images=("photo",), label="y", options=parse_options([setting]))
        with pytest.raises(DataError, match=said):
            asked.open()
    asked = DataRequest(data=path, images=("photo",), label="y", options=parse_options(["labels=b,a"]))
    assert list(asked.open().labels) == ["b", "a"]
