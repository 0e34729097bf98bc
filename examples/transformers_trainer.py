"""Two encoders of transformers, the equilibrium between them, trained by their Trainer.

    python examples/transformers_trainer.py                                        # small encoders with random weights
    python examples/transformers_trainer.py openai/clip-vit-base-patch32 bert-base-uncased

What it learns is drawn here: red or blue squares with a caption, and whether the caption is right. For a table
of your own, put your pictures and texts in place of `draw`.
"""

import random
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Trainer, TrainingArguments

from meq.transformers import EquilibriumForClassification

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "it", "is"]


def draw(count):
    """Pictures, captions, and whether they fit."""
    for _ in range(count):
        color, word = random.choice(["red", "blue"]), random.choice(["red", "blue"])
        yield Image.new("RGB", (32, 32), color), f"it is {word}", int(color == word)


def prepare(examples, processor, tokenizer):
    """Rows as the model reads them: what processor and tokeniser make, and the label."""
    return [
        {
            "pixel_values": processor(picture, return_tensors="pt")["pixel_values"][0],
            **tokenizer(caption, padding="max_length", max_length=8, truncation=True),
            "labels": label,
        }
        for picture, caption, label in examples
    ]


def small_encoders(folder):
    """A CLIP and a BERT that need no download and know nothing yet."""
    from transformers import BertConfig, BertModel, BertTokenizer, CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    image, text = folder / "image", folder / "text"
    CLIPVisionModel(CLIPVisionConfig(**shape, image_size=32, patch_size=16)).save_pretrained(image)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(image)
    BertModel(BertConfig(**shape, vocab_size=len(WORDS))).save_pretrained(text)
    BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(text)
    return str(image), str(text)


def accuracy(answers):
    return {"accuracy": (answers.predictions.argmax(-1) == answers.label_ids).mean()}


def main(folder, image=None, text=None):
    torch.manual_seed(0)
    random.seed(0)
    if image is None:
        image, text = small_encoders(folder)
    processor, tokenizer = AutoImageProcessor.from_pretrained(image), AutoTokenizer.from_pretrained(text)
    model = EquilibriumForClassification.from_encoders(
        image, text, id2label={0: "wrong", 1: "right"}, freeze_encoders=False, dim=32, heads=4, steps=4
    )
    arguments = TrainingArguments(
        str(folder / "checkpoints"),
        num_train_epochs=6,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=prepare(draw(128), processor, tokenizer),
        eval_dataset=prepare(draw(32), processor, tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    print(f"accuracy on new rows: {trainer.evaluate()['eval_accuracy']:.2f}")

    model.save_pretrained(folder / "model")
    again = EquilibriumForClassification.from_pretrained(folder / "model")
    (row,) = prepare([(Image.new("RGB", (32, 32), "red"), "it is blue", 0)], processor, tokenizer)
    batch = {name: torch.as_tensor(x)[None] for name, x in row.items() if name != "labels"}
    answer = again(**batch, output_solution=True)
    print(f"a red square, 'it is blue': {again.config.id2label[int(answer.logits.argmax())]}")
    print(answer.solution)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), *sys.argv[1:])
