"""Small random encoders with a tokenizer, made on the spot: hubs cannot be reached from tests."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "film", "was", "good", "bad", "not", "##ing", "##able", "."]


def save_bert(folder: Path, *, seed: int = 0, positions: int = 32, **more: Any) -> Path:
    """Two layers, 16 features, uncased WordPiece with all letters; texts of up to 28 subwords at once."""
    pieces = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As some are saved: texts cut and filled up to one length.
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=4)
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
        initializer_range=0.5,  # so that context counts
        **more,
    )
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(folder)
    return folder


def save_gpt(folder: Path) -> Path:
    """Byte-level BPE without special tokens, padding or an unknown one, and a decoder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["the film was good"] * 9, trainers.BpeTrainer(vocab_size=270, initial_alphabet=bytes_)
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    GPT2Model(GPT2Config(vocab_size=300, bos_token_id=0, eos_token_id=0, **sizes)).save_pretrained(folder)
    return folder
