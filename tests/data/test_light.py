"""Data sets are found, described and checked without torch, which alone takes seconds to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

from meq.data.table_columns import MODULE_NAMES, modality_named

IMPORTS = """
import sys
import meq.data.check, meq.data.metrics, meq.data.request, meq.data.splitting, meq.data.table, meq.data.transforms
from meq.data import DATA_SETS, DataError, Findings, open_data
assert DATA_SETS["scenes"].options and DATA_SETS["vcr"].options
"""
CHECK = """
from meq.data.check import inspect_data
from meq.data.request import DataRequest
columns = {"images": ["photo"], "texts": ["caption"], "vectors": ["size_*"]}
for label, task in (("kind", "classes"), ("kind", "labels"), ("score", "score")):
    found = inspect_data(DataRequest(data="table.csv", label=label, options={"task": task}, **columns))
    assert found.ok and found.pictures == 10 and found.decoded, str(found)
print(found)
"""
NO_TORCH = "\nassert 'torch' not in sys.modules, 'torch was imported'\n"


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_and_options_of_data_sets_need_no_torch(tmp_path: Path) -> None:
    run(IMPORTS + NO_TORCH, tmp_path)


def test_a_table_with_pictures_is_checked_without_torch(tmp_path: Path) -> None:
    lines = ["photo,caption,size_1,size_2,kind,score"]
    for row in range(10):
        Image.new("RGB", (8, 8), (20 * row, 0, 0)).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,picture number {row},{row},{row * row},{'ab'[row % 2]},{row / 2}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    assert "Ready to encode." in run(IMPORTS + CHECK + NO_TORCH, tmp_path)


def test_a_generated_set_of_pictures_is_checked_without_torch(tmp_path: Path) -> None:
    code = "from meq.data.check import check\nassert check('scenes', train=36, dev=18, test=18).ok\n"
    duels = "assert check('duels', train=36, dev=18, test=18).ok\n"
    run(IMPORTS + code + duels + NO_TORCH, tmp_path)


def test_names_that_modules_use_themselves_are_known_without_asking_torch(tmp_path: Path) -> None:
    # asked in a process of its own: packages such as transformers add names to torch's modules when they are imported
    own = run("import torch\nprint(*{*dir(torch.nn.ModuleDict), *dir(torch.nn.ParameterDict)})", tmp_path).split()
    assert {name for name in own if not name.startswith("__")} <= set(MODULE_NAMES.split())
    assert all(modality_named(name) == f"{name}_" for name in own)
    assert modality_named("photo") == "photo"
