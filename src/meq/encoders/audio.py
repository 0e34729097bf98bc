"""Sounds by any audio model of transformers: one token per frame of the model, each with its time."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from meq.data.content import Content, Sound
from meq.data.sound import MAX_SECONDS
from meq.encoders.catalogue import TRANSFORMERS, WAV2VEC2, EncoderError
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.pretrained import find, load_part, load_processor, weight_hash
from meq.options import checked_options

USUAL_SECONDS = 30.0
"""What is read of a sound where the model sets no limit: attention needs memory by the square of the length."""
SHORTEST_SECONDS = 0.1
"""Shorter sounds are filled up with silence: below that a model may have no frame at all."""
PATCH_FRAME_SECONDS = 0.01
"""A spectrogram transformer's spectrogram has a frame per so many seconds."""
ONLY_FOR_TRAINING = "masked_spec_embed"
"""Stands for masked frames while a model is pretrained; checkpoints often lack it, and nothing reads it here."""


@checked_options
class TransformerAudio(Encoder):
    """The last hidden state of a frozen audio model, by its name on the Hub or its folder.

    For wav2vec 2.0, HuBERT, WavLM and their like, spectrogram transformers (AST), and of an encoder-decoder (Whisper)
    the encoder. Sounds are resampled to the model's rate and prepared by its own feature extractor, one at a time, so
    that none is padded for another. Where the extractor itself fills up to a fixed length, the model hears the silence
    as it did in training, and the tokens of it are left out. What is longer than `max_seconds` is cut, and counted in
    `truncated`.

    Times share the sound out evenly among the frames; a spectrogram's patches have their own, special tokens none.
    """

    registered = TRANSFORMERS
    kind = "audio"

    def __init__(
        self,
        model: str = WAV2VEC2,
        *,
        revision: str | None = None,
        max_seconds: float | None = None,
        device: str = "cpu",
    ) -> None:
        source = find(model, kind=self.kind, revision=revision)
        self.network, _ = load_part(
            source, None, reads=("input_values", "input_features"), noun="sounds", unused=ONLY_FOR_TRAINING
        )
        for name, weight in self.network.named_parameters():
            if name.endswith(ONLY_FOR_TRAINING):  # drawn at random where files lack it: the hash must not depend on it
                weight.zero_()
        self.network.to(device)
        self.extractor = load_processor(source, "AutoFeatureExtractor", {})
        if not hasattr(self.extractor, "sampling_rate"):
            kind = type(self.extractor).__name__
            raise EncoderError(f"{source.name}: its {kind} names no sampling rate: it is not for sounds")
        self.rate = int(self.extractor.sampling_rate)
        self.window = _window(self.network, self.extractor)
        self.max_seconds = _length(self.window, wanted=max_seconds, name=source.name)
        self.name = self.model = source.name
        self.revision = source.revision
        self.weight_hash = weight_hash(self.network, source.folder, self.kind, self.max_seconds)
        self.device = torch.device(device)
        self.truncated = 0
        self.width = int(self._hidden(np.zeros(self._least, np.float32))[0].shape[1])

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content_of(Sound, content, self.name, "sounds")) for content in contents]

    def _encode(self, sound: Sound) -> Tokens:
        samples, rate = sound.open()
        longest = int(self.max_seconds * rate)
        self.truncated += len(samples) > longest
        samples = samples[:longest]
        seconds = len(samples) / rate
        samples = resample(samples, rate, self.rate)
        hidden, real = self._hidden(np.pad(samples, (0, max(0, self._least - len(samples)))))
        times = self._times(len(hidden), max(seconds, SHORTEST_SECONDS))
        # Half a sample is below what times are exact to; NaN, no place, is not beyond the end.
        real = real & ~(times[:, 0] >= seconds - 0.5 / rate)
        return Tokens(features=hidden[real], times=times[real].clamp(max=seconds).float())

    @property
    def _least(self) -> int:
        return round(SHORTEST_SECONDS * self.rate)

    @torch.no_grad()
    def _hidden(self, samples: Float[np.ndarray, " T"]) -> tuple[Tensor, Tensor]:
        """The last hidden state (N W), and which of its tokens the extractor says are real (N)."""
        prepared = self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")
        mask = prepared.get("attention_mask")
        inputs = {self.network.main_input_name: prepared[self.network.main_input_name].to(self.device)}
        if mask is not None and not bool(mask.all()):  # one that hides nothing says nothing, and WavLM warns of it
            inputs["attention_mask"] = mask.to(self.device)
        hidden = getattr(self.network(**inputs), "last_hidden_state", None)
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            raise EncoderError(f"{self.name} is a {type(self.network).__name__}, which gives no sequence of tokens")
        tokens = hidden[0].float().cpu()
        if mask is not None and mask.shape[1] == len(tokens):  # a mask of samples says nothing of tokens
            return tokens, mask[0].bool()
        return tokens, torch.ones(len(tokens), dtype=torch.bool)

    def _times(self, count: int, seconds: float) -> Float[Tensor, "N 2"]:
        if _has_patches(self.network):
            return _patch_times(self.network.config, count)
        edges = torch.linspace(0, self.window or seconds, count + 1, dtype=torch.float64)
        return torch.stack([edges[:-1], edges[1:]], dim=1)


def resample(samples: Float[np.ndarray, " T"], rate: int, wanted: int) -> Float[np.ndarray, " S"]:
    """The same sound at another rate, without what that rate cannot carry."""
    from scipy.signal import resample_poly

    if rate == wanted:
        return samples
    common = gcd(rate, wanted)
    return np.asarray(resample_poly(samples, wanted // common, rate // common), dtype=np.float32)


def _has_patches(model: Any) -> bool:
    return str(model.config.model_type) == "audio-spectrogram-transformer"


def _window(model: Any, extractor: Any) -> float | None:
    """The seconds that every sound is filled up to before the model reads it, where there is such a length."""
    if _has_patches(model):
        return float(model.config.max_length * PATCH_FRAME_SECONDS)
    samples = getattr(extractor, "n_samples", None)  # Whisper's
    return None if samples is None else float(samples / extractor.sampling_rate)


def _length(window: float | None, *, wanted: float | None, name: str) -> float:
    limit = MAX_SECONDS if window is None else window
    if wanted is None:
        return USUAL_SECONDS if window is None else window
    if not SHORTEST_SECONDS <= wanted <= limit:
        raise ValueError(f"{name}: max_seconds must lie between {SHORTEST_SECONDS} and {limit:g}, got {wanted}")
    return wanted


def _patch_times(config: Any, count: int) -> Float[Tensor, "N 2"]:
    """Special tokens first, then row by row of pitch the patches along the time."""
    along = (config.max_length - config.patch_size) // config.time_stride + 1
    pitches = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
    begins = torch.arange(along, dtype=torch.float64) * config.time_stride * PATCH_FRAME_SECONDS
    row = torch.stack([begins, begins + config.patch_size * PATCH_FRAME_SECONDS], dim=1)
    special = torch.full((count - along * pitches, 2), torch.nan, dtype=torch.float64)
    return torch.cat([special, row.repeat(pitches, 1)])
