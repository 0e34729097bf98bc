from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data.table_cases import as_csv, as_jsonl, as_parquet, contents, pictured, simple, skipped
from encoders.models import write_tone

from meq.data import AUDIO
from meq.data.check import inspect_data
from meq.data.content import SoundFile
from meq.data.findings import DataError, Findings
from meq.data.request import DataRequest
from meq.data.splitting import torn_apart
from meq.data.table import table
from meq.models import MutualEquilibrium
from meq.viz.sheet import choose_examples, describe_examples, save_sheet


def test_empty_cells_are_missing_modalities_and_are_counted(tmp_path: Path) -> None:
    records = simple(t=["a", "", "  ", "d", "e", "f"], v=["1 2", "3 4", "5 6", "", "NaN", "null"])
    data = table(as_csv(tmp_path, records), texts="t", vectors="v", label="y", split="split")
    assert contents(data, "t") == ["a", None, None, "d", "e", "f"]
    assert [x is None for x in contents(data, "v")] == [False, False, False, True, True, True]
    assert data.facts["missing cells"] == {"t": 2, "v": 3}


def test_null_nan_absent_keys_and_empty_lists_are_missing_modalities(tmp_path: Path) -> None:
    records = simple(v=[[1.0], None, float("nan"), [], [[]], [2.0]])
    del records[0]["v"]
    data = table(as_jsonl(tmp_path, records), texts="t", vectors="v", label="y", split="split")
    assert [x is None for x in contents(data, "v")] == [True] * 5 + [False]


@pytest.mark.parametrize("cell", ["[1, 2.5, -3]", "1 2.5 -3", "1,2.5,-3", "1; 2.5; -3", "[ 1.   2.5\n -3. ]"])
def test_numbers_may_be_written_in_several_ways(tmp_path: Path, cell: str) -> None:
    data = table(as_csv(tmp_path, simple(v=[cell] * 6)), vectors="v", label="y", split="split")
    assert contents(data, "v")[0].tolist() == [1, 2.5, -3]
    assert data.widths == {"v": 3}


def test_lists_of_lists_are_tokens_and_single_numbers_vectors_of_one(tmp_path: Path) -> None:
    records = simple(v=[[[1, 2]] * (n + 1) for n in range(6)], age=[3, 4.5, 5, 6, 7, 8])
    data = table(
        as_parquet(tmp_path, [r | {"age": float(r["age"])} for r in records]),
        vectors=["v", "age"],
        label="y",
        split="split",
    )
    assert [tuple(x.shape) for x in contents(data, "v")] == [(n + 1, 2) for n in range(6)]
    assert data.widths == {"v": 2, "age": 1}


def test_columns_that_match_a_pattern_are_one_vector(tmp_path: Path) -> None:
    records = simple(audio_10=[3] * 6, audio_2=[2] * 5 + [""], audio_1=["1.5"] * 5 + [""])
    records[5]["audio_10"] = ""
    data = table(as_csv(tmp_path, records), texts="t", vectors="audio_*", label="y", split="split")
    assert contents(data, "audio")[0].tolist() == [1.5, 2, 3]
    assert contents(data, "audio")[5] is None
    assert data.facts["columns"]["audio"] == ["audio_1", "audio_2", "audio_10"]


@pytest.mark.parametrize(
    ("cell", "kind", "words"),
    [
        ("[1, NaN]", "not finite", "column 'v' holds nan at place 2 of its 2 numbers"),
        ("1 -inf", "not finite", "column 'v' holds -inf at place 2"),
        ("1e300 1", "not finite", "column 'v' holds inf at place 1"),
        ("[1, null]", "not finite", "column 'v' holds nan at place 2"),
        ("1 2 3", "wrong width", "column 'v' holds 3 numbers, where most rows hold 2"),
        ("[[1, 2], [3]]", "wrong width", "lists of different lengths"),
        ("1 two", "wrong numbers", "no number .'1 two'."),
        ("[1 2 ... 3]", "wrong numbers", "no number"),
        ("[[1 2] [3 4]]", "wrong numbers", "a list that is no JSON"),
        ("[[[1, 2]]]", "wrong numbers", "3 levels of lists"),
        ('{"a": 1}', "wrong numbers", "no number"),
    ],
)
def test_numbers_that_cannot_be_used_are_named_with_line_and_column(
    tmp_path: Path, cell: str, kind: str, words: str
) -> None:
    path = as_csv(tmp_path, simple(v=["1 2"] * 6) + simple(v=["3 4", cell, *["5 6"] * 4]))
    found, data = skipped(path, vectors="v", label="y", split="split")
    assert found == [(kind, 9)]
    assert data.facts["rows"] == 11
    with pytest.raises(DataError, match=rf"t\.csv, line 9: .*{words}"):
        table(path, vectors="v", label="y", split="split")


def test_objects_and_nulls_in_json_numbers_are_findings(tmp_path: Path) -> None:
    path = as_jsonl(
        tmp_path, simple(v=[[1, 2]] * 6) + simple(v=[{"a": 1}, [1, None], ["x", 2], [1, 2], [1, 2], [1, 2]])
    )
    found, _ = skipped(path, vectors="v", label="y", split="split")
    assert found == [("wrong numbers", 7), ("not finite", 8), ("wrong numbers", 9)]


def test_a_joined_vector_with_a_hole_names_the_column(tmp_path: Path) -> None:
    good = simple(x_1=[1] * 6, x_2=[2] * 6)
    path = as_csv(tmp_path, good + simple(x_1=[1, 1, "a", "1 2", 1, 1], x_2=["", "inf", 2, 2, 2, 2]))
    findings = Findings(on_bad="skip")
    table(path, texts="t", vectors="x_*", label="y", split="split", findings=findings)
    assert [(f.kind, f.line, f.message.split("'")[1]) for f in findings] == [
        ("not finite", 8, "x_2"),
        ("not finite", 9, "x_2"),
        ("wrong numbers", 10, "x_1"),
        ("wrong numbers", 11, "x_1"),
    ]


def test_what_is_done_to_an_example_stays_with_the_example(tmp_path: Path) -> None:
    data = table(as_jsonl(tmp_path, simple(v=[[1, 2]] * 6)), vectors="v", label="y", split="split")
    content = data.splits["train"][0].content["v"]
    assert isinstance(content, torch.Tensor)
    content += 1
    assert contents(data, "v")[0].tolist() == [1, 2]


def test_half_a_character_in_json_is_a_finding(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path, simple() + simple(t=["\ud800", *"bcdef"]))
    found, data = skipped(path, texts="t", label="y", split="split")
    assert [line for _, line in found] == [7]
    assert len(data.fingerprint()) == 64


def test_an_object_in_a_text_column_is_a_finding(tmp_path: Path) -> None:
    found, _ = skipped(
        as_jsonl(tmp_path, simple() + simple(t=[{"a": 1}, ["b"], 3, True, "e", "f"])),
        texts="t",
        label="y",
        split="split",
    )
    assert found == [("wrong text", 7), ("wrong text", 8)]


def test_names_that_no_model_could_use_are_changed_and_the_change_is_recorded(tmp_path: Path) -> None:
    records = simple(**{"title.en": ["x"] * 6, "keys": ["y"] * 6})
    data = table(as_csv(tmp_path, records), texts=["title.en", "keys", "t"], label="y", split="split")
    assert list(data.modalities) == ["title_en", "keys_", "t"]
    assert data.facts["renamed"] == {"title.en": "title_en", "keys": "keys_"}
    MutualEquilibrium(dict.fromkeys(data.modalities, 3), 2, 8, heads=2)


def test_pictures_that_cannot_be_used_are_named_with_their_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "out.png"
    names = ["gone.png", "no/such/folder.png", "https://example.org/a.png", str(secret), "../secret/out.png"]
    names += ["sub/../good.png", "C:\\a.png", "link.png", "linked/out.png", "dangling.png", "sub", "x" * 5000]
    path = pictured(tmp_path, *names)
    (path.parent / "link.png").symlink_to(secret)
    (path.parent / "linked").symlink_to(tmp_path / "secret", target_is_directory=True)
    (path.parent / "dangling.png").symlink_to(path.parent / "nothing.png")
    found, data = skipped(path, images="p", label="y", split="split")
    missing, outside = "missing picture", "path outside"
    kinds = [missing, missing, "wrong path", outside, outside, outside, outside, outside, outside, *[missing] * 3]
    assert found == [(kind, line) for line, kind in enumerate(kinds, 8)]
    assert data.facts["rows"] == 6


def test_a_symlink_that_stays_inside_and_a_name_with_odd_characters_are_fine(tmp_path: Path) -> None:
    path = pictured(tmp_path, "sub/in ü#1.png", "link.png")
    (path.parent / "link.png").symlink_to(path.parent / "good.png")
    data = table(path, images="p", label="y", split="split")
    assert [picture.open().size for picture in contents(data, "p")] == [(2, 2)] * 8


def test_a_circle_of_symlinks_leads_nowhere(tmp_path: Path) -> None:
    path = pictured(tmp_path, "round.png", "circle/a.png")
    (path.parent / "round.png").symlink_to(path.parent / "round.png")
    (path.parent / "circle").symlink_to(path.parent / "circle")
    found, _ = skipped(path, images="p", label="y", split="split")
    assert [line for _, line in found] == [8, 9]


def test_an_error_says_where_the_picture_was_looked_for(tmp_path: Path) -> None:
    path = pictured(tmp_path, "gone.png")
    with pytest.raises(DataError, match=r"t\.csv, line 8: column 'p': there is no picture 'gone.png' below .*root"):
        table(path, images="p", label="y", split="split")
    with pytest.raises(DataError, match=r"line 2: .* below .*secret"):
        table(path, images="p", label="y", split="split", root=tmp_path / "secret")
    with pytest.raises(DataError, match="is not a folder"):
        table(path, images="p", label="y", root=tmp_path / "nowhere")


def test_pictures_are_looked_up_below_a_given_root(tmp_path: Path) -> None:
    path = pictured(tmp_path)
    moved = path.rename(tmp_path / "t.csv")
    assert table(moved, images="p", label="y", split="split", root=tmp_path / "root").facts["rows"] == 6


def test_nothing_is_decoded_before_it_is_asked_for(tmp_path: Path) -> None:
    path = pictured(tmp_path, "broken.png")
    (path.parent / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    broken = contents(table(path, images="p", label="y", split="split"), "p")[-1]
    with pytest.raises(DataError, match=r"broken\.png: not a readable picture"):
        broken.open()


def test_a_number_is_no_path_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: column 't' holds a number, not a picture's path"):
        table(as_jsonl(tmp_path, simple(t=[3] * 6)), images="t", label="y", split="split")


def clips(folder: Path, *, last: str = "clips/0.wav") -> Path:
    """Forty rows about twenty clips; the last row's clip can be another."""
    for k in range(20):
        write_tone(folder / "clips" / f"{k}.wav", 300 + 100 * k, seconds=0.1)
    rows = [f"clips/{k % 20}.wav,what is row {k},{'ab'[k % 3 == 0]}" for k in range(39)] + [f"{last},what is it,a"]
    (folder / "t.csv").write_text("\n".join(["clip,caption,y", *rows]) + "\n")
    return folder / "t.csv"


def asked(path: Path) -> DataRequest:
    return DataRequest(data=str(path), audios=("clip",), texts=("caption",), label="y")


def test_a_column_of_sounds_is_a_modality_and_no_sound_is_in_two_splits(tmp_path: Path) -> None:
    data = table(clips(tmp_path), audios="clip", texts="caption", label="y")
    assert data.modalities["clip"] == AUDIO
    sound = data.splits["train"][0].content["clip"]
    assert isinstance(sound, SoundFile)
    samples, rate = sound.open()
    assert (len(samples), rate) == (1600, 16000)
    pairs = [(str(e.content["clip"]), name) for name, split in data.splits.items() for e in split]
    assert torn_apart([clip for clip, _ in pairs], [name for _, name in pairs]) == []
    assert data.facts["in several splits"] == {"clip": 0}


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("clips/70.wav", r"missing sound: .*there is no sound 'clips/70.wav' below"),
        ("../a.wav", r"path outside: .*goes up with '\.\.'"),
        ("/etc/a.wav", r"path outside: .*is an absolute path"),
        ("https://somewhere/a.wav", r"wrong path: .*download the sound"),
        ("clips/link.wav", r"path outside: .*is a symlink that leads outside"),
    ],
)
def test_a_sound_that_cannot_be_had_is_named_with_its_line(last: str, said: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    path = clips(root, last=last)
    write_tone(tmp_path / "a.wav", 440)
    (root / "clips" / "link.wav").symlink_to(tmp_path / "a.wav")
    findings = Findings("skip")
    table(path, audios="clip", texts="caption", label="y", findings=findings)
    assert [finding.line for finding in findings] == [41]
    with pytest.raises(DataError, match=said.partition(": ")[2]):
        table(path, audios="clip", texts="caption", label="y")
    assert [finding.kind for finding in findings] == [said.partition(": ")[0]]


def test_check_decodes_each_sound_once_and_names_the_broken_ones(tmp_path: Path) -> None:
    path = clips(tmp_path)
    found = inspect_data(asked(path))
    assert found.ok
    assert "clip: audio" in str(found)
    assert "20 different sounds (decoded)" in str(found)
    whole = (tmp_path / "clips" / "3.wav").read_bytes()
    (tmp_path / "clips" / "3.wav").write_bytes(whole[:200])
    for decode in (True, False):
        found = inspect_data(asked(path), decode=decode)
        assert [(problem.kind, problem.count) for problem in found.problems] == [("broken sound", 1)]
        assert "3.wav: not a readable sound: it is cut off" in str(found)
    assert "(heads read, not decoded)" in str(found)


def test_sounds_are_described_in_words_and_on_a_sheet(tmp_path: Path) -> None:
    data = asked(clips(tmp_path)).open()
    examples = choose_examples(data, "train", 3)
    assert f"clip: {examples[0].content['clip']}" in describe_examples(data, examples)
    save_sheet(data, examples, tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1000


def test_sounds_of_a_set_that_knows_its_own_columns_are_refused() -> None:
    with pytest.raises(DataError, match=r"'scenes' knows its own columns: leave out `audios`"):
        DataRequest(data="scenes", audios=("clip",)).open()


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["b", "a", "10"], ["10", "a", "b"]),
        ([True, False, True], ["false", "true"]),
        ([2.0, 1, 10], ["1", "2", "10"]),
    ],
)
def test_labels_are_ordered_by_value_if_they_are_numbers_else_by_the_alphabet(
    tmp_path: Path, cells: list[Any], order: list[str]
) -> None:
    data = table(as_jsonl(tmp_path, simple(y=cells * 2)), texts="t", label="y", split="split")
    assert list(data.labels) == order


def test_decimals_are_classes_or_scores_as_the_task_says_and_are_asked_about_without_it(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path, simple(y=[0.5, -0.25, 0] * 2))
    asked = {"texts": "t", "label": "y", "split": "split"}
    with pytest.raises(
        DataError, match=r"'y' holds numbers with decimals, such as -0.25: .*--task score.*--task classes"
    ):
        table(path, **asked)
    assert list(table(path, **asked, task="classes").labels) == ["-0.25", "0", "0.5"]
    assert table(path, **asked, task="score").head == "score"
    assert table(path, **asked, labels=["-0.25", "0", "0.5"]).head == "classes", "whoever lists them has said it"


def test_many_whole_numbers_are_asked_about_and_a_few_are_classes_with_a_sentence(tmp_path: Path) -> None:
    records = [{"t": f"word {n}", "y": n % 25} for n in range(100)]
    with pytest.raises(DataError, match="'y' holds whole numbers, 25 different ones"):
        table(as_jsonl(tmp_path, records), texts="t", label="y")
    findings = Findings()
    few = [{**record, "y": record["y"] % 5 + 1} for record in records]
    assert len(table(as_jsonl(tmp_path, few), texts="t", label="y", findings=findings).labels) == 5
    assert findings.notes[0].startswith("the labels of 'y' are 5 whole numbers from 1 to 5, and are taken for classes")
    quiet = Findings()
    two = [{**record, "y": record["y"] % 2} for record in records]
    table(as_jsonl(tmp_path, two), texts="t", label="y", findings=quiet)
    assert quiet.notes == [], "0 and 1 need no word"


def test_given_labels_keep_their_order_and_others_are_findings(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple() + simple(y=["yes", "maybe", "yess", "no", "no", "no"]))
    found, data = skipped(path, texts="t", label="y", split="split", labels=["yes", "no", "never"])
    assert found == [("wrong label", 9), ("wrong label", 10)]
    assert list(data.labels) == ["yes", "no", "never"]
    assert [int(e.target) for e in data.splits["dev"] if e.target is not None] == [1, 0, 1]
    with pytest.raises(DataError, match="'yess' is none of the labels: did you mean 'yes'"):
        table(as_csv(tmp_path, simple(y=["yess"] * 6)), texts="t", label="y", labels=["yes", "no"])


@pytest.mark.parametrize("labels", [["a"], ["a", "a"], []])
def test_given_labels_must_be_at_least_two_different_ones(tmp_path: Path, labels: list[str]) -> None:
    with pytest.raises(DataError, match="at least two different names"):
        table(as_csv(tmp_path, simple()), texts="t", label="y", labels=labels)


def test_a_single_class_is_an_error_in_all_rows_and_in_train(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a single label, 'no': 6"):
        table(as_csv(tmp_path, simple(y=["no"] * 6)), texts="t", label="y", split="split")
    with pytest.raises(DataError, match="all 2 rows of train have the same label"):
        table(as_csv(tmp_path, simple(y=["no"] * 5 + ["yes"])), texts="t", label="y", split="split")


def test_a_label_that_train_never_shows_is_reported_but_no_fault(tmp_path: Path) -> None:
    findings = Findings()
    data = table(
        as_csv(tmp_path, simple(y=["a", "b", "c", "a", "c", "c"])),
        texts="t",
        label="y",
        split="split",
        findings=findings,
    )
    assert data.facts["never in train"] == ["the label 'c' never occurs in train ('dev': 1, 'test': 2)"]
    line = "a label never occurs in train, and cannot be learned: 'c' (rows that have them, dev: 1, test: 2)"
    assert findings.absent == findings.notes == [line]
    assert data.facts["label counts"]["test"] == {"a": 0, "b": 0, "c": 2}


def test_labels_that_train_never_shows_are_told_in_one_line(tmp_path: Path) -> None:
    records = [{"t": f"word {n}", "y": "ab"[n % 2], "split": "train"} for n in range(40)]
    records += [{"t": f"word {n}", "y": f"new {n}", "split": ("dev", "test")[n % 2]} for n in range(12)]
    findings = Findings()
    table(
        as_csv(tmp_path, records), texts="t", label="y", split="split", findings=findings, labels=None, task="classes"
    )
    (line,) = findings.absent
    assert line.startswith("12 labels never occur in train, and cannot be learned: 'new 0', 'new 1', 'new 10'")
    assert "and 7 more (rows that have them, dev: 6, test: 6)" in line


def test_numbers_in_place_of_classes_suggest_a_score(tmp_path: Path) -> None:
    records = [{"t": "x", "y": n / 7, "z": f"text {n}"} for n in range(40)]
    with pytest.raises(DataError, match=r"numbers with decimals.*task='score'"):
        table(as_jsonl(tmp_path, records), texts="t", label="y")
    with pytest.raises(DataError, match=r"40 different values in 40 rows.*task='score'"):
        table(as_jsonl(tmp_path, records), texts="t", label="y", task="classes")
    with pytest.raises(DataError, match="another column"):
        table(as_jsonl(tmp_path, records), texts="t", label="z")


def test_a_score_is_a_finite_number(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple(y=[0, 1.5, -2, 3, 4, 5]) + simple(y=["high", "inf", "1e39", "nan", "", "6"]))
    found, data = skipped(path, texts="t", label="y", split="split", task="score")
    kinds = ["wrong label", "not finite", "not finite", "missing label", "missing label"]
    assert found == [(kind, line) for line, kind in enumerate(kinds, 8)]
    target = data.splits["train"][1].target
    assert target is not None
    assert (target.dtype, target.shape, target.item()) == (torch.float32, (), 1.5)
    assert (data.head, data.metric.name, list(data.labels)) == ("score", "r2", ["y"])
    assert data.facts["label counts"]["train"] == {"mean": 0.75, "std": 0.75, "min": 0.0, "max": 1.5}


def test_a_score_has_no_labels_and_must_vary(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple(y=[1] * 6))
    with pytest.raises(DataError, match="has no labels"):
        table(path, texts="t", label="y", task="score", labels=["a", "b"])
    with pytest.raises(DataError, match=r"holds 1\.0 in every row"):
        table(path, texts="t", label="y", task="score", split="split")


def test_several_labels_come_as_lists_or_with_a_separator(tmp_path: Path) -> None:
    lists = [["b", "a"], [], ["c"], ["a", "a"], ["b"], ["c", "b"]]
    options: dict[str, Any] = {"texts": "t", "label": "y", "split": "split", "task": "labels"}
    one = table(as_jsonl(tmp_path, simple(y=lists)), **options)
    assert [e.target.tolist() for e in one.splits["train"] if e.target is not None] == [[1, 1, 0], [0, 0, 0]]
    two = table(as_csv(tmp_path, simple(y=["b; a", "a", "c", "a;a", "b", "c;b"])), **options, separator=";")
    assert list(one.labels) == list(two.labels) == ["a", "b", "c"]
    assert two.splits["train"][0].target is not None
    assert two.facts["label counts"]["train"] == {"a": 2, "b": 1, "c": 0}
    with pytest.raises(DataError, match="separator"):
        table(tmp_path / "t.csv", **options, separator="")
    found, _ = skipped(as_csv(tmp_path, simple() + simple(y=["", "a", "b", "a", "b", "a"])), **options)
    assert found == [("missing label", 8)]
