"""Small randomly initialised models in the Hugging Face layout, pictures and tones, for the tests of encoders."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import wavfile

from meq.data.content import DrawnPicture
from meq.encoders.pretrained import quiet

TOKENIZERS = Path(__file__).resolve().parents[3] / "shared" / "data" / "tokenizers"
PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "a", "dog", "cafe", "sleep", "##s", "run", "##ning", "un", "##happy", "##er", "on", ".", ",", "!"),
)
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "initializer_range": 0.2}


def shared(name: str) -> Path:
    """A vocabulary from the folder beside the checkout; the test is skipped where there is none."""
    path = TOKENIZERS / name
    if not path.is_file():
        pytest.skip(f"the vocabulary {name} is not in {TOKENIZERS}")
    return path


def save_bert(folder: Path, pieces: tuple[str, ...] = PIECES, *, positions: int = 40) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(pieces), num_hidden_layers=2, max_position_embeddings=positions, **SHAPE)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    with quiet():
        BertModel(config).save_pretrained(folder)
        BertTokenizer(vocab=vocabulary, model_max_length=positions).save_pretrained(folder)
    return folder


def save_clip(folder: Path, *, layers: int = 2, tokenizer: bool = False) -> Path:
    """Pictures of 32 x 32 pixels in patches of 8; without layers a token knows its own patch and nothing else."""
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

    torch.manual_seed(2)
    vocabulary, merges = _clip_pieces(shared("clip_bpe_simple_vocab_16e6.txt.gz")) if tokenizer else ({"a": 0}, [])
    shape = {**SHAPE, "num_hidden_layers": layers}
    shape.pop("initializer_range")
    ends = {"bos_token_id": max(len(vocabulary) - 2, 0), "eos_token_id": len(vocabulary) - 1, "pad_token_id": 0}
    config = CLIPConfig(
        text_config={**shape, "vocab_size": len(vocabulary), "max_position_embeddings": 77, **ends},
        vision_config={**shape, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    with quiet():
        CLIPModel(config).save_pretrained(folder)
        size = {"height": 32, "width": 32}
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)
        if tokenizer:
            CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77).save_pretrained(folder)
    return folder


def _clip_pieces(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """CLIP's vocabulary: bytes, bytes that end a word, merged pairs, start and end."""
    from tokenizers.pre_tokenizers import ByteLevel

    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [(left, right) for left, right in (line.split() for line in lines)]
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    return {piece: number for number, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}, merges


def noise(width: int, height: int, seed: int = 0) -> DrawnPicture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return DrawnPicture(f"noise {width} x {height}", lambda: Image.fromarray(pixels))


def square_at(size: tuple[int, int], box: tuple[int, int, int, int] | None) -> DrawnPicture:
    """A grey picture, with a white rectangle if there is a box for it."""
    image = Image.new("RGB", size, "grey")
    if box is not None:
        image.paste("white", box)
    return DrawnPicture(f"square at {box}", lambda: image)


def save_wav2vec2(folder: Path, *, rate: int = 16000) -> Path:
    """A token per 20 samples, from frames of 40."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(3)
    config = Wav2Vec2Config(
        num_hidden_layers=2,
        conv_dim=(16, 16),
        conv_stride=(10, 2),
        conv_kernel=(20, 3),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        **SHAPE,
    )
    with quiet():
        Wav2Vec2Model(config).save_pretrained(folder)
        Wav2Vec2FeatureExtractor(sampling_rate=rate, return_attention_mask=False).save_pretrained(folder)
    return folder


def write_tone(path: Path, pitch: float, *, seconds: float = 0.25, rate: int = 16000) -> Path:
    """A tone of that pitch that swells and fades, 16 bits, one channel."""
    time = np.arange(round(seconds * rate)) / rate
    tone = 0.5 * np.sin(2 * np.pi * pitch * time) * np.sin(np.pi * time / seconds)
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, (tone * 32767).astype(np.int16))
    return path
