from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from encoders.models import SHAPE, noise, save_bert, save_wav2vec2, write_tone
from scipy.io import wavfile

from meq.data.content import SoundFile
from meq.encoders.audio import TransformerAudio, resample
from meq.encoders.catalogue import EncoderError
from meq.encoders.pretrained import quiet

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wav2vec2(tmp_path_factory.mktemp("models") / "small-wav2vec2")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TransformerAudio:
    return TransformerAudio(str(folder))


def tone(folder: Path, pitch: float, *, seconds: float = 0.25, rate: int = 16000) -> SoundFile:
    return SoundFile(write_tone(folder / f"{pitch}-{seconds}-{rate}.wav", pitch, seconds=seconds, rate=rate), folder)


def save_ast(folder: Path) -> Path:
    """Spectrograms of 60 frames and 32 pitches, in patches of 8 that do not overlap: 4 rows of 7."""
    from transformers import ASTConfig, ASTFeatureExtractor, ASTModel

    torch.manual_seed(4)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = {"max_length": 60, "num_mel_bins": 32}
    config = ASTConfig(**shape, **size, patch_size=8, time_stride=8, frequency_stride=8)
    with quiet():
        ASTModel(config).save_pretrained(folder)
        ASTFeatureExtractor(**size).save_pretrained(folder)
    return folder


def save_whisper(folder: Path) -> Path:
    """Windows of one second: 50 tokens."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperModel

    torch.manual_seed(5)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(
        vocab_size=8,
        d_model=16,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=50,
        num_mel_bins=20,
        **layers,
        **ends,
    )
    with quiet():
        WhisperModel(config).save_pretrained(folder)
        WhisperFeatureExtractor(feature_size=20, chunk_length=1).save_pretrained(folder)
    return folder


def test_tokens_are_the_hidden_states_of_the_frames(encoder: TransformerAudio, tmp_path: Path) -> None:
    sound = tone(tmp_path, 440)
    tokens = encoder([sound])[0]
    samples, _ = sound.open()
    prepared = encoder.extractor(samples, sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        expected = encoder.network(prepared["input_values"]).last_hidden_state[0]
    assert torch.equal(tokens.features, expected)
    assert tokens.features.shape == (199, 32) == (199, encoder.width)
    assert not tokens.features.requires_grad
    assert tokens.times is not None
    assert torch.allclose(tokens.times[:, 0], torch.arange(199) * 20 / 16000, atol=20 / 16000)
    assert (float(tokens.times[0, 0]), float(tokens.times[-1, 1])) == (0.0, 0.25)


@pytest.mark.parametrize("save", [save_wav2vec2, save_ast, save_whisper])
def test_company_and_order_change_nothing(save: object, tmp_path: Path) -> None:
    assert callable(save)
    encoder = TransformerAudio(str(save(tmp_path / "model")))
    sounds = [tone(tmp_path, 300, seconds=0.4), tone(tmp_path, 900), tone(tmp_path, 500, seconds=0.12)]
    together, backwards = encoder(sounds), encoder(sounds[::-1])[::-1]
    for sound, one, two in zip(sounds, together, backwards, strict=True):
        alone = encoder([sound])[0]
        assert torch.equal(one.features, two.features)
        assert torch.equal(one.features, alone.features)
        assert alone.features.shape == (len(alone.features), encoder.width)
        assert alone.times is not None
        assert len(alone.times) == len(alone.features)
    assert encoder.truncated == 0
    assert encoder([]) == []


def test_the_same_tone_at_another_rate_has_close_features(encoder: TransformerAudio, tmp_path: Path) -> None:
    """Not only close: much closer than another tone."""
    low, high = encoder([tone(tmp_path, 440, rate=8000), tone(tmp_path, 440, rate=16000)])
    other = encoder([tone(tmp_path, 880)])[0]
    assert low.features.shape == high.features.shape
    scale = float(high.features.std())
    assert float((low.features - high.features).abs().mean()) < 0.1 * scale
    assert float((other.features - high.features).abs().mean()) > 0.3 * scale


def test_resampling_keeps_a_tone() -> None:
    for rate in (8000, 22050, 44100):
        given = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
        made = resample(given, rate, 16000)
        expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
        assert (made.shape, made.dtype) == ((16000,), np.float32)
        assert np.abs(made - expected)[500:-500].max() < 0.01


@pytest.mark.parametrize("family", ["Hubert", "WavLM"])
def test_models_like_wav2vec2_are_read_with_a_mask_too(family: str, tmp_path: Path) -> None:
    import transformers

    shape = {**SHAPE, "num_hidden_layers": 1, "conv_dim": (16,), "conv_stride": (20,), "conv_kernel": (40,)}
    config = getattr(transformers, f"{family}Config")(**shape, num_conv_pos_embeddings=8)
    with quiet():
        getattr(transformers, f"{family}Model")(config).save_pretrained(tmp_path / family)
        transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(tmp_path / family)
    tokens = TransformerAudio(str(tmp_path / family))([tone(tmp_path, 440)])[0]
    assert tokens.features.shape == (199, 32)


def test_a_token_that_the_extractor_filled_up_is_left_out(tmp_path: Path) -> None:
    """wav2vec2-BERT joins frames of a spectrogram by two; of an odd number the last is alone, and masked."""
    from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with quiet():
        Wav2Vec2BertModel(Wav2Vec2BertConfig(**shape)).save_pretrained(tmp_path / "model")
        SeamlessM4TFeatureExtractor().save_pretrained(tmp_path / "model")
    encoder = TransformerAudio(str(tmp_path / "model"))
    made = encoder([tone(tmp_path, 440, seconds=seconds) for seconds in (0.215, 0.225, 0.235)])
    assert [len(tokens.features) for tokens in made] == [10, 10, 11]


def test_what_whisper_is_filled_up_with_gives_no_tokens(tmp_path: Path) -> None:
    encoder = TransformerAudio(str(save_whisper(tmp_path / "whisper")))
    short, long = encoder([tone(tmp_path, 440, seconds=0.3), tone(tmp_path, 440, seconds=1.5)])
    assert [len(short.features), len(long.features)] == [15, 50]
    assert short.times is not None
    assert torch.allclose(short.times[3], torch.tensor([0.06, 0.08]))
    assert encoder.max_seconds == 1.0
    assert encoder.truncated == 1


def test_patches_of_a_spectrogram_have_their_times_and_special_tokens_none(tmp_path: Path) -> None:
    encoder = TransformerAudio(str(save_ast(tmp_path / "ast")))
    short, long = encoder([tone(tmp_path, 440, seconds=0.2), tone(tmp_path, 440, seconds=0.6)])
    assert [len(short.features), len(long.features)] == [2 + 4 * 3, 2 + 4 * 7]
    assert short.times is not None
    assert bool(short.times[:2].isnan().all())
    expected = torch.tensor([[0.0, 0.08], [0.08, 0.16], [0.16, 0.2]])
    assert torch.allclose(short.times[2:], expected.repeat(4, 1))


def test_longer_sounds_are_cut_and_counted_and_a_click_is_a_sound_too(folder: Path, tmp_path: Path) -> None:
    encoder = TransformerAudio(str(folder), max_seconds=0.2)
    long, exact, click = encoder([tone(tmp_path, 440, seconds=x) for x in (0.5, 0.2, 0.001)])
    assert encoder.truncated == 1
    assert len(long.features) == len(exact.features) == 159
    assert len(click.features) == 1
    assert click.times is not None
    assert torch.allclose(click.times, torch.tensor([[0.0, 0.001]]))


@pytest.mark.parametrize("wanted", [0.0, 601.0, float("nan")])
def test_a_length_that_cannot_be_is_refused(folder: Path, wanted: float) -> None:
    with pytest.raises(ValueError, match=r"small-wav2vec2: max_seconds must lie between 0\.1 and 600"):
        TransformerAudio(str(folder), max_seconds=wanted)


def test_the_hash_is_stable_and_tells_lengths_apart(encoder: TransformerAudio, folder: Path) -> None:
    assert TransformerAudio(str(folder)).weight_hash == encoder.weight_hash
    assert TransformerAudio(str(folder), max_seconds=5.0).weight_hash != encoder.weight_hash
    assert (encoder.name, encoder.revision, encoder.kind) == ("small-wav2vec2", "local", "audio")


def test_a_checkpoint_without_the_weight_for_masked_frames_is_whole(folder: Path, tmp_path: Path) -> None:
    """As facebook/wav2vec2-base-960h is; what transformers draws in its place must not reach the hash."""
    from safetensors.torch import load_file, save_file

    place = save_wav2vec2(tmp_path / "small-wav2vec2")
    weights = load_file(place / "model.safetensors")
    del weights["masked_spec_embed"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    assert TransformerAudio(str(place)).weight_hash == TransformerAudio(str(folder)).weight_hash
    del weights["feature_projection.projection.weight"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(EncoderError, match=r"lack 1 weights \(feature_projection\.projection\.weight\)"):
        TransformerAudio(str(place))


def test_other_contents_and_other_models_are_refused(encoder: TransformerAudio, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"small-wav2vec2 reads sounds, got DrawnPicture"):
        encoder([noise(8, 8)])
    with pytest.raises(EncoderError, match=r"is a BertModel, which reads input_ids: it is no encoder of sounds"):
        TransformerAudio(str(save_bert(tmp_path / "bert")))
    place = save_wav2vec2(tmp_path / "bare")
    (place / "preprocessor_config.json").unlink()
    with pytest.raises(EncoderError, match=r"bare: none of preprocessor_config\.json, processor_config\.json"):
        TransformerAudio(str(place))


def test_silence_has_finite_features(encoder: TransformerAudio, tmp_path: Path) -> None:
    wavfile.write(tmp_path / "silence.wav", 16000, np.zeros(4000, np.int16))
    tokens = encoder([SoundFile(tmp_path / "silence.wav", tmp_path)])[0]
    assert bool(tokens.features.isfinite().all())
