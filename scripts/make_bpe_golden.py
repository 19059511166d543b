#!/usr/bin/env python3
"""make_bpe_golden.py DIRECTORY [STRINGS]: writes vocab.json, merges.txt and tokens.txt, which tests/unit/worker_runtime/data/bpe_test.cpp reads.

A small byte-level BPE trained by Hugging Face's `tokenizers` (pip install tokenizers==0.23.3), and what that library
makes of random Unicode strings: one line each, the text as hexadecimal UTF-8 and its tokens.
    python3 scripts/make_bpe_golden.py tests/data/bpe
"""
import pathlib
import random
import re
import sys
import unicodedata

from tokenizers import ByteLevelBPETokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCABULARY = 640
SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
PARTS = [
    "abcdefghijklmnopqrstuvwxyz", "THEQUICKBROWN", "0123456789", " ", "  \n\t", SPACES, "'", ".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"",
    "äöüßéèñçøå", "αβγδεζηθ", "бвгдежзик", "你好世界天地", "かなカナ", "한국어", "שלום", "مرحبا", "नमस्ते", "👍🏽🙂👩‍👩‍👧", "²³½ⅣⅨ١٢٣", "\u0301\u0308\u200d",
]
WORDS = ["the", " the", " harbour", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", " 's", "don't", "we'll", "   ", "\n\n", " 12", "keeper"]


def embedded_text() -> str:
    source = (ROOT / "worker_runtime/data/embedded_text.cpp").read_text()
    return re.search(r'R"text\((.*?)\)text"', source, re.S).group(1)


def any_character(generator: random.Random) -> str:
    while True:
        character = chr(generator.randrange(0x110000 if generator.random() < 0.3 else 0x3000))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
            return character


def random_text(generator: random.Random) -> str:
    text = ""
    for _ in range(generator.randrange(1, 9)):
        kind = generator.random()
        if kind < 0.4:
            text += generator.choice(WORDS)
        elif kind < 0.85:
            part = generator.choice(PARTS)
            text += "".join(generator.choice(part) for _ in range(generator.randrange(1, 5)))
        else:
            text += any_character(generator)
    return text


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    strings = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    generator = random.Random(20261130)
    tokenizer = ByteLevelBPETokenizer()
    sample = ["".join(part for _ in range(20)) for part in PARTS]
    tokenizer.train_from_iterator([embedded_text(), *sample], vocab_size=VOCABULARY, show_progress=False)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(directory))
    with open(directory / "tokens.txt", "w") as out:
        for _ in range(strings):
            text = random_text(generator)
            out.write(f"{text.encode().hex()} {' '.join(map(str, tokenizer.encode(text).ids))}\n")


if __name__ == "__main__":
    main()
