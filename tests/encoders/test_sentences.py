from __future__ import annotations

import pytest
import torch

from meq.data import Example, collate
from meq.data.duels import duels
from meq.data.duels_worlds import WORDS
from meq.encoders.builtin import Words
from meq.encoders.sentences import BUCKETS, CODE, GAIN, Sentences


def spans_of(text: str) -> list[str]:
    tokens = Sentences()([text])[0]
    assert tokens.spans is not None
    assert len(tokens.spans) == len(tokens.features)
    return [text[start:end] for start, end in tokens.spans.tolist()]


def test_a_sentence_is_a_token_and_spans_point_at_it_in_the_text() -> None:
    assert spans_of("which colour is moon? star: red.  heart: the same as key. ") == [
        *("which colour is moon?", "star: red.", "heart: the same as key."),
    ]
    assert spans_of("One; two!\n three\n\n  four ... five?!") == ["One;", "two!", "three", "four ...", "five?!"]
    assert spans_of("no end") == ["no end"]


def test_the_first_word_has_a_block_of_its_own_and_the_others_share_one() -> None:
    features = (Sentences()(["star: the winner of moon and star."])[0].features / GAIN).reshape(2, CODE)
    first, others = (
        {WORDS[place]: features[row, place].item() for place in features[row].nonzero().flatten()} for row in range(2)
    )
    assert first == {"star": 1}
    assert others == dict.fromkeys((":", "the", "winner", "of", "moon", "and", "star", "."), 1)


def test_every_word_of_the_duels_has_a_feature_of_its_own_and_others_are_hashed() -> None:
    encoder = Sentences()
    codes = torch.cat([tokens.features for tokens in encoder(WORDS[:-2])]) / GAIN
    assert torch.equal(codes @ codes.T, torch.eye(len(WORDS) - 2))
    zebra, same = (tokens.features[0] for tokens in encoder(["zebra", "ZEBRA"]))
    assert torch.equal(zebra, same)
    assert zebra[: len(WORDS)].abs().max() == 0
    assert zebra.norm() == pytest.approx(GAIN, rel=1e-5)
    assert len(WORDS) + BUCKETS == CODE


def test_every_sentence_of_the_duels_is_read_whole_and_tells_itself_from_all_others() -> None:
    data, encoder = duels(train=900, dev=9, test=9, deep_test=9, ask="one"), Sentences()
    texts = {str(example.content["text"]) for example in data.splits["train"]}
    codes = torch.cat([tokens.features for tokens in encoder(sorted(texts))])
    said = {sentence.strip(" .?") for text in texts for sentence in text.replace("?", ".").split(".")} - {""}
    apart = {(sentence.split()[0], frozenset(sentence.split()[1:])) for sentence in said}  # whom it asks, in any order
    assert len(codes.unique(dim=0)) == len(apart) > 300
    assert encoder.truncated == 0


def test_order_of_words_after_the_first_and_case_do_not_matter() -> None:
    a, b, c = (x.features for x in Sentences()(["Moon and star, red.", "moon AND red, star.", "star and moon, red."]))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


def test_long_texts_are_cut_and_counted_and_empty_ones_have_no_tokens() -> None:
    encoder = Sentences(max_sentences=2)
    many, short, empty, blank = encoder(["a. b. c.", "one two three", "", " \n"])
    assert [len(tokens.features) for tokens in (many, short, empty, blank)] == [2, 1, 0, 0]
    assert encoder.truncated == 1
    assert empty.spans is not None
    assert empty.spans.shape == (0, 2)
    example = Example(id="a", content={"text": empty.features}, target=torch.tensor(0))
    assert collate([example], {"text": encoder.width}).features == {}


def test_encoding_does_not_depend_on_what_else_is_encoded() -> None:
    encoder, several = Sentences(), ["star: red.", "a dog runs. it barks!", ""]
    together = encoder(several)
    assert all(torch.equal(x.features, encoder([each])[0].features) for x, each in zip(together, several, strict=True))


def test_codes_are_the_same_in_every_process_and_those_of_words_are_as_they_were() -> None:
    """Written down once: Python's own hash of a string would differ from one process to the next."""
    assert Sentences()(["zebra"])[0].features[0].nonzero().flatten().tolist() == [44, 45, 47, 48, 52]
    assert Words().weight_hash.startswith("769a461e18f33c1b")


@pytest.mark.usefixtures("unchecked")
def test_wrong_content_and_wrong_options_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="reads texts, got int"):
        Sentences()([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="max_sentences must be a whole number of at least 1"):
        Sentences(max_sentences=0)
    with pytest.raises(TypeError, match="did you mean 'max_sentences'"):
        Sentences(max_sentence=3)  # type: ignore[call-arg]
