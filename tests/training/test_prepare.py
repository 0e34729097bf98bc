"""Raw data becomes features in one way, whoever asks: what needs it is encoded, what came as numbers standardised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from studies.photo_table import write_rows

from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.request import DataRequest
from meq.data.transforms import standardise
from meq.encoders import encode
from meq.encoders.builtin import Words
from meq.records import FormatError, write_sealed
from meq.training.prepare import prepare, prepare_request
from meq.training.record import REQUEST, RunRequest, read_request, write_request

WORDS = {"t": Words()}


@pytest.fixture
def request_(tmp_path: Path) -> DataRequest:
    """A table of numbers and words."""
    parts = ("train", "train", "dev", "test")
    rows = [[str(3 + k % 5), f"thing {k % 3}", "yn"[k % 2], parts[k % 4]] for k in range(16)]
    path = write_rows(tmp_path / "rows.csv", ["v", "t", "y", "part"], rows)
    return DataRequest(data=str(path), vectors=("v",), texts=("t",), label="y", split="part")


def same_features(ours: DataSet, theirs: DataSet) -> bool:
    """To the bit."""
    return all(
        torch.equal(one.content[name], other.content[name])
        for split in ours.splits
        for one, other in zip(ours.splits[split], theirs.splits[split], strict=True)
        for name in one.content
    )


def test_numbers_are_standardised_alike_before_and_after_the_rest_is_encoded(request_: DataRequest) -> None:
    raw = request_.open()
    made, statistics = prepare(raw, WORDS, standardised=["v"])
    first, before = standardise(raw)
    after = before.apply(encode(raw, WORDS))
    assert same_features(made, after)
    assert made.fingerprint() == encode(first, WORDS).fingerprint()
    assert statistics == before
    assert statistics is not None
    assert list(statistics.mean) == ["v"]
    train = torch.stack([example.content["v"] for example in made.splits["train"]])
    torch.testing.assert_close(train.mean(0), torch.zeros(train.shape[1:]), atol=1e-6, rtol=0)


def test_every_modality_is_standardised_where_that_is_asked_for(request_: DataRequest) -> None:
    raw = request_.open()
    made, statistics = prepare(raw, WORDS, standardised=raw.modalities)
    assert statistics is not None
    assert set(statistics.mean) == {"v", "t"}
    assert made.fingerprint() == standardise(encode(raw, WORDS))[0].fingerprint()


def test_known_statistics_are_applied_and_not_taken_again(request_: DataRequest) -> None:
    raw = request_.open()
    _, known = prepare(raw, WORDS, standardised=["v"])
    few = DataSet(
        name="few",
        splits={"new": raw.splits["dev"]},
        modalities=raw.modalities,
        labels=raw.labels,
        head=raw.head,
        metric=raw.metric,
    )
    made, applied = prepare(few, WORDS, standardised=known)
    assert applied is known
    whole, _ = prepare(raw, WORDS, standardised=known)
    for ours, theirs in zip(made.splits["new"], whole.splits["dev"], strict=True):
        assert torch.equal(ours.content["v"], theirs.content["v"])
    with pytest.raises(DataError, match="no modality 'v'"):
        prepare(
            DataSet(
                name="words only",
                splits=few.splits,
                modalities={"t": raw.modalities["t"]},
                labels=raw.labels,
                head=raw.head,
                metric=raw.metric,
            ),
            WORDS,
            standardised=known,
        )


def test_data_that_is_left_alone_stays_as_it_is(request_: DataRequest) -> None:
    raw = request_.open()
    made, statistics = prepare(raw, {})
    assert made is raw
    assert statistics is None


def test_a_request_says_where_its_features_come_from(request_: DataRequest) -> None:
    said: list[str] = []
    data, provenance = prepare_request(request_, {"text": "words"}, say=said.append)
    assert provenance.source_fingerprint == standardise(request_.open())[0].fingerprint()
    assert provenance.kinds == {"t": "text"}
    assert provenance.request is not None
    assert {name: getattr(provenance.request, name) for name in vars(request_)} == vars(request_)
    assert said == ["encoders: t by words-64-v1"]
    plain, without = prepare_request(request_, {"text": "words"}, standardised=False)
    assert without.standardisation is None
    assert not same_features(plain, data)


def test_a_request_comes_back_from_its_file_and_from_one_as_versions_before_wrote_it(tmp_path: Path) -> None:
    request = RunRequest(
        data="rows.csv", root=Path("files"), texts=["t"], label="y", encoders={"text": "words"}, store=Path("kept")
    )
    write_request(tmp_path, request)
    assert read_request(tmp_path) == replace(request, texts=("t",))
    fields = {"schema": 1, "data": "rows.csv", "root": "files", "images": [], "texts": ["t"], "audios": []}
    fields |= {"vectors": [], "label": "y", "split": None, "group": None, "options": {}, "encoders": {"text": "words"}}
    write_sealed(tmp_path / REQUEST, {**fields, "store": "kept", "skip_bad": False})
    assert read_request(tmp_path) == replace(request, texts=("t",))
    write_sealed(tmp_path / REQUEST, {**fields, "store": 3, "skip_bad": False})
    with pytest.raises(FormatError, match="the field 'store' should be a text, is 3"):
        read_request(tmp_path)


def test_what_cannot_be_read_or_encoded_is_counted_together(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    parts = ("train", "train", "dev", "test")
    rows = [["broken.png" if k == 4 else "", f"thing {k}", "yn"[k % 2], parts[k % 4]] for k in range(16)]
    rows.append(["", "no label", "", "train"])
    path = write_rows(tmp_path / "rows.csv", ["p", "t", "y", "part"], rows)
    request = DataRequest(data=str(path), images=("p",), texts=("t",), label="y", split="part")
    said: list[str] = []
    prepare_request(request, {"image": "patches", "text": "words"}, skip_bad=True, say=said.append)
    assert "left out as bad: 2" in said
    findings = Findings("raise")
    with pytest.raises(DataError, match=r"broken.png|label"):
        prepare(request.open(findings), WORDS, findings=findings)
