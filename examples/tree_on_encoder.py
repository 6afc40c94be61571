"""A tree over the words of a Hugging Face encoder, both trained by transformers' Trainer.

python examples/tree_on_encoder.py --steps 300

The encoder is a small random BERT, so nothing is downloaded; --encoder FOLDER uses a pretrained one.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from beamtree import BeamTreeEncoder, SubwordsToWords

Row = tuple[str, int]
WHOSE, WHO = ["a", "the", "my", "your", "our"], ["dog", "cat", "friend", "sister", "teacher", "neighbour"]


class TreeOnEncoder(nn.Module):
    """Subwords -> the encoder's vectors -> words -> a tree -> labels; gradients reach the encoder too."""

    def __init__(self, encoder: nn.Module, width: int, d_model: int, labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.to_words = SubwordsToWords()
        self.tree = BeamTreeEncoder(d_model, input_size=width)
        self.head = nn.Linear(d_model, labels)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        word_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        subwords = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        words, is_pad = self.to_words(subwords, word_ids)  # (B, n, width), (B, n)
        logits = self.head(self.tree(words, key_padding_mask=is_pad))
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


class Collator:
    """Makes a batch of texts and labels: the tokenizer's output, and the word of each subword."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        encoding = self.tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
        return {
            "input_ids": encoding["input_ids"],
            "attention_mask": encoding["attention_mask"],
            "word_ids": SubwordsToWords.word_ids(encoding),
            "labels": torch.tensor([label for _, label in rows]),
        }


def make_sentences() -> list[Row]:
    """Make sentences that say whether somebody is kind, negated by some words and by the prefix un-."""
    rows = []
    for depth in range(3):
        for truths in product(["true", "untrue"], repeat=depth):
            for whose, who, says, judged in product(WHOSE, WHO, ["is", "is not"], ["kind", "unkind"]):
                turns = [*truths, says, judged].count
                label = (turns("untrue") + turns("is not") + turns("unkind")) % 2 == 0
                before = "".join(f"it is {truth} that " for truth in truths)
                rows.append((f"{before}{whose} {who} {says} {judged}", int(label)))
    return rows


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer like BERT's, with few subwords: un-, -kind, -true."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=80, special_tokens=special))
    frame = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


class Printer(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if "loss" in logs:
            print(f"step {state.global_step - 1}: loss {float(logs['loss']):.3f}")


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", help="folder or hub name for AutoModel and AutoTokenizer")
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    rows = make_sentences()
    random.Random(options.seed).shuffle(rows)
    rows, tested = rows[100:], rows[:100]
    if options.encoder:
        tokenizer = AutoTokenizer.from_pretrained(options.encoder)
        encoder = AutoModel.from_pretrained(options.encoder, use_safetensors=True)
    else:
        tokenizer = make_tokenizer([text for text, _ in rows])
        sizes = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
        encoder = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes), add_pooling_layer=False)
    model = TreeOnEncoder(encoder, encoder.config.hidden_size, options.d_model, labels=2)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=32,
                learning_rate=1e-3,
                logging_steps=50,
                logging_first_step=True,
                save_strategy="no",
                remove_unused_columns=False,  # rows are pairs, not the model's arguments
                dataloader_pin_memory=False,
                report_to=[],
                disable_tqdm=True,
                seed=options.seed,
            ),
            train_dataset=rows,
            data_collator=Collator(tokenizer),
            callbacks=[Printer()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        found = trainer.predict(tested)
    accuracy = float((found.predictions.argmax(-1) == found.label_ids).mean())
    print(f"{accuracy:.1%} of {len(tested)} new sentences")
    return accuracy


if __name__ == "__main__":
    main()
