"""Texts by any text model of transformers: one token per piece of a word, each with its span of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from meq.data.content import Content
from meq.encoders.catalogue import BERT, TRANSFORMERS, EncoderError
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.pretrained import Source, batches, find, load_part, load_processor, weight_hash
from meq.options import checked_options, whole_number

UNLIMITED = 100_000
"""Tokenisers without a limit give an absurdly large one; and nobody wants a text of that many tokens at once."""


@checked_options
class TransformerText(Encoder):
    """The last hidden state of a frozen text model, by its name on the Hub or its folder.

    Special tokens are kept, without a span. Longer texts than `max_tokens`, by default what the model can read, are cut
    and counted in `truncated`. Of a model for pictures and texts the part for texts is used, of an encoder-decoder the
    encoder.
    """

    registered = TRANSFORMERS
    kind = "text"

    def __init__(
        self,
        model: str = BERT,
        *,
        revision: str | None = None,
        max_tokens: int | None = None,
        batch_size: int = 32,
        device: str = "cpu",
    ) -> None:
        self.batch_size, self.device = whole_number("TransformerText: batch_size", batch_size), torch.device(device)
        source = find(model, kind=self.kind, revision=revision)
        self.network, _ = load_part(source, "text_model", reads=("input_ids",), noun="texts")
        self.network.to(device)
        self.tokeniser = _tokeniser(source, self.network)
        self.max_tokens = _length(self.network, self.tokeniser, wanted=max_tokens, name=source.name)
        self.name = self.model = source.name
        self.revision = source.revision
        self.weight_hash = weight_hash(self.network, source.folder, self.kind, self.max_tokens)
        self.truncated = 0
        self.width = int(self._hidden(self._pieces(["a"])).shape[2])

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        texts = [content_of(str, content, self.name, "texts") for content in contents]
        # Texts of about the same length share a batch: what is padded is computed for nothing.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        made: dict[int, Tokens] = {}
        for places in batches(order, self.batch_size):
            made.update(zip(places, self._encode([texts[place] for place in places]), strict=True))
        return [made[place] for place in range(len(texts))]

    def _encode(self, texts: list[str]) -> list[Tokens]:
        pieces = self._pieces(texts)
        hidden = self._hidden(pieces).float().cpu()
        self.truncated += sum(bool(encoding.overflowing) for encoding in pieces.encodings)
        real = pieces["attention_mask"].bool()
        return [
            Tokens(features=hidden[row, real[row]], spans=_spans(text, pieces, row)[real[row]])
            for row, text in enumerate(texts)
        ]

    def _pieces(self, texts: list[str]) -> Any:
        return self.tokeniser(
            texts,
            padding=True,
            truncation=True,
            max_length=self.max_tokens,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=True,
            return_tensors="pt",
        )

    @torch.no_grad()
    def _hidden(self, pieces: Any) -> Tensor:
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in pieces]
        inputs = {name: pieces[name].to(self.device) for name in names}
        return self.network(**inputs).last_hidden_state


def _tokeniser(source: Source, model: Any) -> Any:
    tokeniser = load_processor(source, "AutoTokenizer", {})
    if not tokeniser.is_fast:
        raise EncoderError(f"{source.name}: its tokeniser does not say where a token lies; convert it to a fast one")
    known = model.get_input_embeddings().num_embeddings
    if len(tokeniser) > known:
        raise EncoderError(f"{source.name}: its tokeniser has {len(tokeniser)} pieces, its model {known}")
    tokeniser.padding_side = tokeniser.truncation_side = "right"
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token  # any will do, padding is masked
    return tokeniser


def _length(model: nn.Module, tokeniser: Any, *, wanted: int | None, name: str) -> int:
    """The most tokens of a text, special ones included."""
    positions = int(getattr(model.config, "max_position_embeddings", None) or UNLIMITED)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding) and table.padding_idx is not None:
        positions -= table.padding_idx + 1  # RoBERTa counts from there
    limit = min(positions, int(tokeniser.model_max_length), UNLIMITED)
    least = tokeniser.num_special_tokens_to_add() + 1
    if wanted is None:
        return limit
    if not least <= wanted <= limit:
        raise ValueError(f"{name}: max_tokens must lie between {least} and {limit}, got {wanted}")
    return wanted


def _spans(text: str, pieces: Any, row: int) -> Int[Tensor, "N 2"]:
    """The characters of each token, without the spaces around them that some tokenisers count in."""
    spans = []
    for (start, end), special in zip(
        pieces["offset_mapping"][row].tolist(), pieces["special_tokens_mask"][row].tolist(), strict=True
    ):
        piece = text[start:end]
        stripped = piece.strip()
        begin = start + (len(piece) - len(piece.lstrip()))
        spans.append((-1, -1) if special or not stripped else (begin, begin + len(stripped)))
    return torch.tensor(spans).reshape(-1, 2).long()
