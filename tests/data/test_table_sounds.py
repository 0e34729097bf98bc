from __future__ import annotations

from pathlib import Path

import pytest
from encoders.models import write_tone

from meq.data import AUDIO
from meq.data.check import inspect_data
from meq.data.content import SoundFile
from meq.data.findings import DataError, Findings
from meq.data.request import DataRequest
from meq.data.splitting import torn_apart
from meq.data.table import table
from meq.viz.listing import choose_examples, describe_examples, save_sheet


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
