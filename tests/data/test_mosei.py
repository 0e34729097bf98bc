"""CMU-MOSEI in the forms it goes around in."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from data.more_folders import LONGEST, SCORES, WIDTHS, mosei_folder, write_csd

from meq.data import DataError, Findings, collate
from meq.data.metrics import ACC2, ACC2_NONZERO, ACC7, RULES, acc7_of_scores
from meq.data.metrics import SCORES as METRICS
from meq.data.mosei import LAYOUTS, mosei

PICKLES = ("mult", "mmsa-aligned", "mmsa-unaligned")
FILES = {name: file for name, (file, _) in LAYOUTS.items()}


def changed(folder: Path, layout: str, change: Any) -> Path:
    """The folder with its pickle altered."""
    file = folder / FILES[layout]
    whole = pickle.loads(file.read_bytes())
    change(whole)
    file.write_bytes(pickle.dumps(whole))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_recognised_and_gives_three_modalities(tmp_path: Path, layout: str) -> None:
    data = mosei(mosei_folder(tmp_path, layout))
    assert data.facts["layout"] == layout
    assert data.widths == {"image": WIDTHS["vision"], "audio": WIDTHS["audio"], "text": WIDTHS["text"]}
    assert list(data.splits) == ["train", "dev", "test"]
    batch = collate(data.splits["train"], data.widths)
    assert all(bool(torch.isfinite(x).all()) for x in batch.features.values())
    assert data.head == "classes"
    assert len(data.labels) == 7


@pytest.mark.parametrize("layout", PICKLES)
def test_the_sizes_and_scores_are_those_of_the_file(tmp_path: Path, layout: str) -> None:
    data = mosei(mosei_folder(tmp_path, layout), target="score")
    scores = {name: [float(example.target) for example in split] for name, split in data.splits.items()}  # type: ignore[arg-type]
    assert scores["train"] == pytest.approx(SCORES["train"])
    assert scores["dev"] == pytest.approx(SCORES["valid"])
    assert scores["test"] == pytest.approx(SCORES["test"])


def test_zeros_before_the_words_are_cut(tmp_path: Path) -> None:
    train = mosei(mosei_folder(tmp_path)).splits["train"]
    for row, example in enumerate(train):
        assert {len(x) for x in example.content.values()} == {LONGEST - row % 3}
        assert all(bool((x != 0).any(-1).all()) for x in example.content.values())  # type: ignore[union-attr]


def test_bert_s_mask_cuts_the_padding_of_an_aligned_file(tmp_path: Path) -> None:
    train = mosei(mosei_folder(tmp_path, "mmsa-aligned")).splits["train"]
    for row, example in enumerate(train):
        assert {name: len(x) for name, x in example.content.items()} == dict.fromkeys(
            ("image", "audio", "text"), row % 3 + 2
        )


def test_lengths_cut_the_padding_of_an_unaligned_file(tmp_path: Path) -> None:
    train = mosei(mosei_folder(tmp_path, "mmsa-unaligned")).splits["train"]
    for row, example in enumerate(train):
        lengths = {name: len(x) for name, x in example.content.items()}
        assert lengths == {"image": row % 4 + 1, "audio": row % 2 + 3, "text": row % 3 + 2}


def test_a_modality_of_length_0_is_left_out(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "mmsa-unaligned")
    changed(folder, "mmsa-unaligned", lambda whole: whole["train"]["audio_lengths"].__setitem__(1, 0))
    assert set(mosei(folder).splits["train"][1].content) == {"image", "text"}


def test_vectors_are_the_means_of_the_tokens(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path)
    tokens, vectors = (mosei(folder, vectors=flag).splits["train"][3] for flag in (False, True))
    for name in tokens.content:
        torch.testing.assert_close(vectors.content[name], tokens.content[name].mean(0))  # type: ignore[union-attr]


def test_infinite_values_of_audio_become_0_and_are_counted(tmp_path: Path) -> None:
    data = mosei(mosei_folder(tmp_path))
    audio = data.splits["train"][0].content["audio"]
    assert isinstance(audio, torch.Tensor)
    assert audio[-1, 0] == 0
    assert data.facts["audio_values_set_to_0"] == {"train": 1, "dev": 1, "test": 1}


def test_raw_text_is_offered_to_a_text_encoder(tmp_path: Path) -> None:
    data = mosei(mosei_folder(tmp_path, "mmsa-aligned"), text="raw")
    assert data.modalities["text"].kind == "text"
    assert data.splits["train"][2].content["text"] == "words of clip 2"
    with pytest.raises(DataError, match="holds no words"):
        mosei(mosei_folder(tmp_path / "mult"), text="raw")


@pytest.mark.parametrize(
    ("score", "by_round", "by_sdk"),
    [(0.333, 0, 1), (-0.333, 0, -1), (0.0, 0, 0), (0.5, 0, 1), (1.5, 2, 2), (2.5, 2, 3), (-2.5, -2, -3)]
    + [(x, x, x) for x in (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0)]
    + [(3.7, 3, 3), (-3.7, -3, -3), (-1.0001, -1, -2), (1.0001, 1, 2)],
)
def test_the_two_rules_make_their_own_classes(score: float, by_round: int, by_sdk: int) -> None:
    assert RULES["round"](torch.tensor([score])).item() - 3 == by_round
    assert RULES["sdk"](torch.tensor([score])).item() - 3 == by_sdk


@pytest.mark.parametrize(("rule", "label"), [("round", "0"), ("sdk", "1")])
def test_the_rule_decides_the_target(tmp_path: Path, rule: Any, label: str) -> None:
    data = mosei(mosei_folder(tmp_path), rule=rule)
    target = data.splits["train"][0].target
    assert target is not None
    assert data.labels[int(target)] == label
    assert data.facts["rule"] == rule


def test_scores_are_measured_in_every_way_in_use() -> None:
    truth = torch.tensor([-2.0, 0.0, 1.0, 2.0])
    guess = torch.tensor([[-1.0], [-0.4], [1.4], [3.0]])
    assert ACC2(guess, truth) == 3 / 4
    assert ACC2_NONZERO(guess, truth) == 1
    assert METRICS[2](guess, truth) == pytest.approx(-(1 + 0.4 + 0.4 + 1) / 4)
    assert METRICS[3](guess, truth) == pytest.approx(np.corrcoef(guess[:, 0], truth)[0, 1])
    assert acc7_of_scores("round")(guess, truth) == 2 / 4
    assert acc7_of_scores("sdk")(guess, truth) == 0
    assert ACC7(torch.eye(7)[[3, 4]], torch.tensor([3, 5])) == 1 / 2


def test_a_score_target_comes_with_its_metrics(tmp_path: Path) -> None:
    data = mosei(mosei_folder(tmp_path), target="score")
    assert (data.head, data.metric.name) == ("score", "Acc-7")
    assert [metric.name for metric in data.also] == ["Acc-2", "Acc-2 without 0", "negative mae", "pearson"]


# what the .csd files say


def test_words_carry_the_mean_of_the_frames_during_them(tmp_path: Path) -> None:
    train = mosei(mosei_folder(tmp_path, "csd")).splits["train"]
    assert [example.id for example in train] == ["one[0]", "one[1]"]
    image = train[0].content["image"]
    assert isinstance(image, torch.Tensor)
    assert image[:, 0].tolist() == [0.25, 2.25]  # "one" over 0 to 1, "two" over 2 to 3; the pause is left out
    assert [example.facts["text"] for example in train] == ["one two", "three four"]
    assert [example.facts["score"] for example in train] == [1.5, -0.5]


def test_an_average_with_an_infinite_frame_becomes_0_and_is_counted(tmp_path: Path) -> None:
    data = mosei(mosei_folder(tmp_path, "csd"))
    audio = data.splits["train"][0].content["audio"]
    assert isinstance(audio, torch.Tensor)
    assert audio[0].tolist() == [0, 0.25, 0.25, 0.25]
    assert data.facts["audio_values_set_to_0"] == {"train": 1, "dev": 0, "test": 1}


def test_clips_that_fail_to_align_are_dropped_and_named(tmp_path: Path) -> None:
    findings = Findings()
    data = mosei(mosei_folder(tmp_path, "csd"), findings=findings)
    assert data.facts["dropped_clips"] == {
        "dev": {"two[0]": "no words"},
        "test": {"three[1]": "no audio during its words", "four": "no labels"},
    }
    assert [example.id for example in data.splits["test"]] == ["three[0]"]
    assert any("three[1] (no audio during its words)" in line for line in findings.absent)


def test_frames_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    expected = mosei(folder).splits["train"][0].content["image"]
    times = np.arange(0, 8, 0.5)[::-1]
    frames = (np.stack([times, times + 0.5], 1), np.repeat(times[:, None], WIDTHS["vision"], 1))
    write_csd(folder / "CMU_MOSEI_VisualFacet42.csd", "facet", dict.fromkeys(("one", "two", "three"), frames))
    torch.testing.assert_close(mosei(folder).splits["train"][0].content["image"], expected)


def test_without_a_file_of_words_vectors_of_zeros_are_pauses(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    (folder / "CMU_MOSEI_TimestampedWords.csd").unlink()
    findings = Findings()
    data = mosei(folder, findings=findings)
    assert len(data.splits["train"][0].content["text"]) == 3
    assert "text" not in data.splits["train"][0].facts
    assert any("no words" in line for line in findings.absent)


def test_missing_folds_are_explained(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    (folder / "folds.json").unlink()
    with pytest.raises(DataError, match=r"folds\.json: missing.*standard folds"):
        mosei(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "wrong JSON"),
        ("[]", "expected"),
        ('{"train": "one"}', "expected"),
        ('{"train": ["one"], "test": ["one"]}', "duplicate id.*'one'"),
        ('{"train": ["nobody"]}', "no clip"),
    ],
)
def test_wrong_folds_are_errors(tmp_path: Path, text: str, message: str) -> None:
    folder = mosei_folder(tmp_path, "csd")
    (folder / "folds.json").write_text(text)
    with pytest.raises(DataError, match=message):
        mosei(folder)


def test_a_csd_file_that_is_none_is_named(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    file = folder / "CMU_MOSEI_COVAREP.csd"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"COVAREP\.csd: not a readable HDF5 file"):
        mosei(folder)
    file.unlink()
    with pytest.raises(DataError, match=r"COVAREP\.csd: missing"):
        mosei(folder)


def test_links_out_of_a_csd_file_are_not_followed(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    (folder / "CMU_MOSEI_COVAREP.csd").rename(tmp_path / "elsewhere.h5")
    with h5py.File(folder / "CMU_MOSEI_COVAREP.csd", "w") as file:
        file["COVAREP"] = h5py.ExternalLink(str(tmp_path / "elsewhere.h5"), "/COVAREP")
    with pytest.raises(DataError, match="leads outside of the file"):
        mosei(folder)


def test_features_and_intervals_that_disagree_are_an_error(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path, "csd")
    write_csd(folder / "CMU_MOSEI_COVAREP.csd", "x", {video: ([(0, 1)], [[1.0], [2.0]]) for video in ("one", "two")})
    with pytest.raises(DataError, match="video 'one': 2 rows of audio for intervals"):
        mosei(folder)


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mosei_folder(tmp_path, "csd")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install 'meq\[mosei\]'"):
        mosei(folder)


# bad input


def set_value(part: str, key: str, row: int, value: Any) -> Any:
    def change(whole: Any) -> None:
        whole[part][key][row] = value

    return change


BAD_ROWS = [
    ("wrong label", set_value("train", "regression_labels", 1, 7.0), "clip 'trainvideo\\$_\\$1'.*7"),
    ("not finite", set_value("train", "regression_labels", 1, np.nan), "sentiment is nan"),
    ("not finite", set_value("train", "vision", 1, np.inf), "'image'"),
    ("wrong length", set_value("train", "audio_lengths", 1, 99), "99"),
    ("duplicate id", set_value("train", "id", 1, "trainvideo$_$0"), "trainvideo\\$_\\$0"),
    ("empty text", set_value("train", "text_bert", 1, 0), "no words"),
]


@pytest.mark.parametrize(("kind", "change", "message"), BAD_ROWS)
def test_a_bad_clip_is_an_error_or_skipped(tmp_path: Path, kind: str, change: Any, message: str) -> None:
    folder = changed(mosei_folder(tmp_path, "mmsa-unaligned"), "mmsa-unaligned", change)
    with pytest.raises(DataError, match=message):
        mosei(folder)
    findings = Findings("skip")
    data = mosei(folder, findings=findings)
    assert findings.counts == {kind: 1}
    assert len(data.splits["train"]) == len(SCORES["train"]) - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole["train"].pop("labels"), "'train': missing key 'labels'"),
        (lambda whole: whole["train"].update(id=["a"]), "'id' has 1 entries for 6 clips"),
        (lambda whole: whole["test"].update(audio=np.zeros((3, 6))), "'audio' has shape"),
        (lambda whole: whole["test"].update(audio=np.zeros((2, 6, 4))), "different numbers of clips"),
        (lambda whole: whole["test"].update(text=np.ones((3, 6, 9))), "'text' differs in width"),
        (lambda whole: whole.clear(), "none of the splits"),
        (lambda whole: whole.update(train=[1]), "where a dictionary should be"),
    ],
)
def test_a_file_of_another_form_says_what_is_different(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mosei(changed(mosei_folder(tmp_path), "mult", change))


JUNK = (
    None,
    3,
    "text",
    b"",
    [],
    {},
    [None],
    [[1], [1, 2]],
    np.float32(1),
    np.zeros(0),
    np.zeros((6, 3)),
    np.array([["a"] * 3] * 6),
)


@pytest.mark.parametrize("layout", PICKLES)
def test_junk_under_any_key_never_ends_in_anything_but_a_data_error(tmp_path: Path, layout: str) -> None:
    whole = pickle.loads((mosei_folder(tmp_path, layout) / FILES[layout]).read_bytes())
    refused = 0
    for key, good in list(whole["train"].items()):
        for junk in JUNK:
            whole["train"][key] = junk
            (tmp_path / FILES[layout]).write_bytes(pickle.dumps(whole))
            try:
                list(mosei(tmp_path, findings=Findings("skip"), layout=layout).splits["train"])
            except DataError:
                refused += 1
        whole["train"][key] = good
    assert refused > 40


CSD_JUNK = (np.zeros(0), np.zeros(5), np.zeros((5, 0)), np.zeros((5, 2, 2)), np.array([b"x"] * 5), np.float64(1))


@pytest.mark.parametrize("name", ["Labels", "TimestampedWords", "TimestampedWordVectors", "COVAREP", "VisualFacet42"])
@pytest.mark.parametrize("part", ["intervals", "features"])
def test_junk_in_a_csd_file_never_ends_in_anything_but_a_data_error(tmp_path: Path, name: str, part: str) -> None:
    folder = mosei_folder(tmp_path, "csd")
    refused = 0
    for junk in CSD_JUNK:
        with h5py.File(folder / f"CMU_MOSEI_{name}.csd", "a") as file:
            del file[f"{name}/data/one/{part}"]
            file[f"{name}/data/one/{part}"] = junk
        try:
            list(mosei(folder).splits["train"])
        except DataError:
            refused += 1
    assert refused >= 4


def test_a_split_that_is_not_there_is_absent_and_no_fault(tmp_path: Path) -> None:
    findings = Findings()
    data = mosei(changed(mosei_folder(tmp_path), "mult", lambda whole: whole.pop("test")), findings=findings)
    assert list(data.splits) == ["train", "dev"]
    assert findings.absent == ["the split test: mosei_senti_data.pkl has no 'test'"]


def test_the_layout_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for mosei_senti_data\.pkl"):
        mosei(tmp_path)
    mosei_folder(mosei_folder(tmp_path), "mmsa-aligned")
    with pytest.raises(DataError, match="layout= one of mult, mmsa-aligned"):
        mosei(tmp_path)
    assert mosei(tmp_path, layout="mmsa-aligned").facts["layout"] == "mmsa-aligned"
    with pytest.raises(DataError, match="did you mean 'mult'"):
        mosei(tmp_path, layout="mullt")


@pytest.mark.usefixtures("unchecked")
def test_unknown_choices_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'round'"):
        mosei(mosei_folder(tmp_path), rule="rounded")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'target'"):
        mosei(tmp_path, targets="acc7")  # type: ignore[call-arg]


def test_what_the_record_keeps_can_be_written_as_json(tmp_path: Path) -> None:
    facts = mosei(mosei_folder(tmp_path, "csd")).facts
    assert json.loads(json.dumps(facts)) == facts


def test_words_are_read_where_the_files_have_them(tmp_path: Path) -> None:
    with_words = mosei(mosei_folder(tmp_path / "words", "mmsa-aligned"), text="auto")
    without = mosei(mosei_folder(tmp_path / "none"), text="auto")
    assert with_words.modalities["text"].kind == "text"
    assert isinstance(with_words.splits["train"][0].content["text"], str)
    assert with_words.facts["text"] == "raw"
    assert (without.modalities["text"].kind, without.facts["text"]) == ("features", "features")
