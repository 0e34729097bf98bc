"""What docs/reproduce.md says of files and sizes."""

from __future__ import annotations

import itertools
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from data import more_folders
from studies.kinds import FOLDERS

from meq.data.contract import DataSet, features
from meq.data.metrics import ACCURACY
from meq.data.request import open_data
from meq.studies import make_study
from meq.studies.build import sized_options
from meq.studies.settings import FULL
from meq.training.arms import make_model

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reproduce.md").read_text()


def listed() -> dict[str, list[str]]:
    """By data set: the patterns of its files, as the page has them, below its folder."""
    folders = dict(re.findall(r'^([a-z0-9-]+) = "(data/[^"]+)"$', PAGE, re.MULTILINE))
    block = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    patterns = [pattern for line in block[1].split() for pattern in _spelled_out(line)]
    return {
        name: [each.removeprefix(f"{folder}/") for each in patterns if each.startswith(f"{folder}/")]
        for name, folder in folders.items()
    }


def _spelled_out(pattern: str) -> list[str]:
    """a{b,c} is ab and ac."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(each) for each in itertools.product(*parts)]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_files_that_the_page_lists_are_there_and_are_enough(name: str, tmp_path: Path) -> None:
    root = tmp_path / name
    more_folders.mosei_folder(root, "mmsa-aligned") if name == "mosei" else FOLDERS[name](root)
    if (root / "data").is_dir():  # of Hateful Memes, which may lie a folder deeper
        for each in list((root / "data").iterdir()):
            shutil.move(each, root / each.name)
    patterns, options = listed()[name], FULL[name].data.options
    files = [path for path in root.rglob("*") if path.is_file()]
    known = {path.relative_to(root).as_posix(): path for path in files}
    for pattern in patterns:
        assert any(fnmatch(file, pattern) for file in known), pattern
    for file, path in known.items():
        if not any(fnmatch(file, pattern) for pattern in patterns):
            path.unlink()
    data = open_data(name, root, **options, **({"dev": 0.4} if name == "cod10k" else {}))
    assert {"train", "dev"} <= set(data.splits)
    assert all(data.splits[split][0].content for split in ("train", "dev"))


@pytest.mark.parametrize(("name", "labels", "head"), [("hateful-memes", 2, "classes"), ("vqa-v2", 3129, "labels")])
def test_how_much_larger_a_single_state_makes_the_model_is_as_the_page_says(name: str, labels: int, head: str) -> None:
    study, widths = make_study("state-design", name), {"image": 768, "text": 768}
    data = DataSet(
        name=name,
        splits={},
        modalities={modality: features(width) for modality, width in widths.items()},
        labels=tuple(map(str, range(labels))),
        head=head,
        metric=ACCURACY,
    )

    def size(arm: str, part: Any) -> int:
        with torch.device("meta"):
            return make_model(study.arm(arm).model, data, sized_options(study, study.arm(arm), data)).count_parameters(
                part
            )

    assert size("single-state", "block") == pytest.approx(size("meq", "block"), rel=1e-3)
    more = 100 * (size("single-state", "model") / size("meq", "model") - 1)
    assert f"{more:.1f} % " in " ".join(PAGE.split())
