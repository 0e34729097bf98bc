from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from encoders.models import PIECES, noise, save_bert, save_clip, shared

from meq.encoders.catalogue import EncoderError
from meq.encoders.text import TransformerText, _spans

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")

TEXTS = ("The dog sleeps.", "a", "", "  running  on, the UNHAPPYER café!", "zebra dog", "a dog " * 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def bert(folder: Path) -> TransformerText:
    return TransformerText(str(folder), batch_size=4)


def pieces_of(encoder: TransformerText, text: str) -> list[str]:
    return encoder.tokeniser.convert_ids_to_tokens(encoder.tokeniser(text)["input_ids"])


def test_tokens_are_the_hidden_states_of_the_pieces_with_special_ones(bert: TransformerText) -> None:
    tokens = bert(["The dog sleeps."])[0]
    assert pieces_of(bert, "The dog sleeps.") == ["[CLS]", "the", "dog", "sleep", "##s", ".", "[SEP]"]
    assert tokens.features.shape == (7, 32) == (7, bert.width)
    assert tokens.features.dtype == torch.float32
    assert not tokens.features.requires_grad
    ids = torch.tensor([[PIECES.index(piece) for piece in ("[CLS]", "the", "dog", "sleep", "##s", ".", "[SEP]")]])
    with torch.no_grad():
        expected = bert.network(input_ids=ids).last_hidden_state[0]
    assert torch.allclose(tokens.features, expected, atol=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_of_a_span_is_its_token(bert: TransformerText, text: str) -> None:
    spans = bert([text])[0].spans
    pieces = pieces_of(bert, text)
    assert spans is not None
    assert len(spans) == len(pieces)
    for (start, end), piece in zip(spans.tolist(), pieces, strict=True):
        if piece in ("[CLS]", "[SEP]"):
            assert (start, end) == (-1, -1)
        elif piece == "[UNK]":
            assert text[start:end] == "zebra"
        else:
            assert text[start:end].lower().replace("é", "e") == piece.removeprefix("##")


def test_padding_company_and_order_change_nothing(bert: TransformerText) -> None:
    together = bert(TEXTS)
    backwards = bert(TEXTS[::-1])[::-1]
    alone = [bert([text])[0] for text in TEXTS]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert one.features.shape == two.features.shape == three.features.shape
        assert torch.allclose(one.features, two.features, atol=1e-5)
        assert torch.allclose(one.features, three.features, atol=1e-5)
        assert torch.equal(one.spans, three.spans)
    assert torch.equal(bert(TEXTS)[0].features, together[0].features)
    assert bert([]) == []


def test_longer_texts_are_cut_and_counted(folder: Path) -> None:
    encoder = TransformerText(str(folder), max_tokens=6)
    assert encoder.truncated == 0
    made = encoder(["the dog run.", "the dog run on.", "a " * 50, "a"])
    assert [len(tokens.features) for tokens in made] == [6, 6, 6, 3]
    assert encoder.truncated == 2
    assert made[1].spans.tolist() == [[-1, -1], [0, 3], [4, 7], [8, 11], [12, 14], [-1, -1]]


def test_by_default_a_text_may_be_as_long_as_the_model_reads(bert: TransformerText) -> None:
    assert bert.max_tokens == 40
    assert bert(["a " * 100])[0].features.shape == (40, 32)
    assert bert.truncated == 1


@pytest.mark.parametrize("wanted", [0, 2, 41])
def test_a_length_that_the_model_cannot_have_is_refused(folder: Path, wanted: int) -> None:
    with pytest.raises(ValueError, match=rf"small-bert: max_tokens must lie between 3 and 40, got {wanted}"):
        TransformerText(str(folder), max_tokens=wanted)


def test_the_hash_tells_lengths_and_weights_apart(bert: TransformerText, folder: Path) -> None:
    assert TransformerText(str(folder)).weight_hash == bert.weight_hash
    assert TransformerText(str(folder), max_tokens=12).weight_hash != bert.weight_hash
    assert (bert.name, bert.revision, bert.kind) == ("small-bert", "local", "text")


def test_a_picture_is_not_a_text(bert: TransformerText) -> None:
    with pytest.raises(TypeError, match=r"small-bert reads texts, got DrawnPicture"):
        bert([noise(8, 8)])


def test_a_picture_model_is_no_text_encoder(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(tmp_path / "vit")
    with pytest.raises(EncoderError, match=r"vit is a ViTModel, which reads pixel_values: it is no encoder of texts"):
        TransformerText(str(tmp_path / "vit"))


def test_of_an_encoder_decoder_the_encoder_reads_and_a_decoder_alone_reads_too(folder: Path, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model, T5Config, T5Model

    t5 = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    gpt = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=12, bos_token_id=2, eos_token_id=3)
    for model, longest in ((T5Model(t5), 40), (GPT2Model(gpt), 12)):
        place = tmp_path / type(model).__name__
        model.save_pretrained(place)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, place / name)
        encoder = TransformerText(str(place))
        short, long = encoder(["the dog sleeps", "a " * 50])
        assert len(long.features) == encoder.max_tokens == longest
        assert torch.allclose(short.features, encoder(["the dog sleeps"])[0].features, atol=1e-5)


def test_positions_that_are_counted_from_behind_the_padding_leave_less_room(tmp_path: Path) -> None:
    """RoBERTa: byte-level pieces with the space before them, and positions that start behind the padding's number."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet()), "Ġd"]
    config = RobertaConfig(
        vocab_size=len(pieces), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=12
    )
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    RobertaTokenizer(vocab=vocabulary, merges=[("Ġ", "d")]).save_pretrained(tmp_path / "roberta")
    encoder = TransformerText(str(tmp_path / "roberta"))
    assert encoder.max_tokens == 10
    tokens = encoder(["a dé a dog a dog"])[0]
    assert len(tokens.features) == 10
    assert tokens.spans.tolist()[:5] == [[-1, -1], [0, 1], [2, 3], [3, 4], [3, 4]]  # two bytes of one letter


def test_spaces_that_a_tokeniser_counts_in_belong_to_no_token() -> None:
    pieces = {
        "offset_mapping": torch.tensor([[[0, 0], [0, 2], [2, 6], [6, 8]]]),
        "special_tokens_mask": torch.zeros(1, 4),
    }
    assert _spans("A  dog  ", pieces, 0).tolist() == [[-1, -1], [0, 1], [3, 6], [-1, -1]]


# -- the real vocabularies ---------------------------------------------------------------------------------------------


def test_the_pieces_of_bert_base_uncased_have_their_spans(tmp_path: Path) -> None:
    pieces = tuple(shared("bert-base-uncased-vocab.txt").read_text(encoding="utf-8").splitlines())
    encoder = TransformerText(str(save_bert(tmp_path / "bert", pieces)))
    text = "Two zebras graze; an unbelievably striped foal's hooves -- 3.14!"
    tokens = encoder([text])[0]
    found = pieces_of(encoder, text)
    assert found[1:5] == ["two", "zebra", "##s", "graz"]
    assert tokens.spans is not None
    spans = tokens.spans.tolist()
    assert spans[0] == spans[-1] == [-1, -1]
    assert [text[start:end].lower() for start, end in spans[1:-1]] == [
        piece.removeprefix("##") for piece in found[1:-1]
    ]


def test_the_text_part_of_clip_is_read_with_its_own_pieces(tmp_path: Path) -> None:
    encoder = TransformerText(str(save_clip(tmp_path / "clip", tokenizer=True)))
    text = "A  photo of a Dachshund, running"
    tokens, _ = encoder([text, "a much longer text, so that the other one is padded with its own end token"])
    found = pieces_of(encoder, text)
    assert found[:4] == ["<|startoftext|>", "a</w>", "photo</w>", "of</w>"]
    assert tokens.spans is not None
    spans = tokens.spans.tolist()
    assert [text[start:end].lower() for start, end in spans[1:-1]] == [
        piece.removesuffix("</w>") for piece in found[1:-1]
    ]
    assert spans[0] == spans[-1] == [-1, -1]
    assert torch.allclose(tokens.features, encoder([text])[0].features, atol=1e-5)
    assert encoder.max_tokens == 77
