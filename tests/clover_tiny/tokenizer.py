"""Byte-level BPE with Qwen's pre-tokenizer: training, encoding, Hugging Face tokenizer.json.

Python's `re` has no \\p{L}; PIECE is Qwen's pattern written with the classes that `re` does have.
The two agree where all non-ASCII characters are letters. tokenizer.json carries Qwen's own.
"""

import collections
import json
import re

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTER = r"[^\W\d_]"
PIECE = re.compile(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:(?!{LETTER})[^\r\n\d])?{LETTER}+|\d"
    rf"| ?(?:(?!{LETTER})[^\s\d])+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
PLAIN_ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
ADDED = SPECIAL + PLAIN_ADDED
ADDED_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in ADDED) + ")")
VOCAB_SIZE = 2048


def byte_characters():
    """GPT-2's printable character for every byte."""
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, spare = {}, 0x100
    for byte in range(256):
        if byte in keep:
            table[byte] = chr(byte)
        else:
            table[byte], spare = chr(spare), spare + 1
    return table


BYTE_CHAR = byte_characters()
CHAR_BYTE = {char: byte for byte, char in BYTE_CHAR.items()}


def to_chars(data):
    return "".join(BYTE_CHAR[byte] for byte in data)


def pieces_of(text):
    """Pre-tokenizer pieces of a text, added tokens left out."""
    for part in ADDED_SPLIT.split(text):
        if part not in ADDED:
            yield from PIECE.findall(part)


def merge_word(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def train_merges(counts, wanted):
    """Merges in rank order, from piece -> weight. Keeps pair counts up to date word by word."""
    words = [[BYTE_CHAR[b] for b in piece.encode()] for piece in counts]
    weights = list(counts.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += weights[i]
            where[pair].add(i)
    merges = []
    while len(merges) < wanted and pairs:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] <= 0:
            break
        merges.append(best)
        for i in where.pop(best):
            for pair in zip(words[i], words[i][1:]):
                pairs[pair] -= weights[i]
            words[i] = merge_word(words[i], best)
            for pair in zip(words[i], words[i][1:]):
                pairs[pair] += weights[i]
                where[pair].add(i)
        pairs.pop(best, None)
    return merges


class Tokenizer:
    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        names = [BYTE_CHAR[byte] for byte in range(256)] + [a + b for a, b in self.merges]
        self.ids = {name: i for i, name in enumerate(names)}
        assert len(self.ids) == len(names), "two merges give the same token"
        self.names = names
        self.added = {text: len(names) + i for i, text in enumerate(ADDED)}
        self.size = len(names) + len(ADDED)
        self.cache = {}
        self.mask, self.end_text = self.added["<|mask|>"], self.added["<|endoftext|>"]
        self.stops = {self.added["<|im_end|>"], self.end_text}

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            merges = json.load(file)["model"]["merges"]
        return cls([tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges])

    def piece_ids(self, piece):
        known = self.cache.get(piece)
        if known is not None:
            return known
        word = [BYTE_CHAR[b] for b in piece.encode()]
        while len(word) > 1:
            best = min(zip(word, word[1:]), key=lambda pair: self.rank.get(pair, 1 << 30))
            if best not in self.rank:
                break
            word = merge_word(word, best)
        self.cache[piece] = known = [self.ids[name] for name in word]
        return known

    def encode(self, text):
        out = []
        for part in ADDED_SPLIT.split(text):
            if part in self.added:
                out.append(self.added[part])
            else:
                for piece in PIECE.findall(part):
                    out += self.piece_ids(piece)
        return out

    def decode(self, ids):
        data = b""
        for i in ids:
            if i < len(self.names):
                data += bytes(CHAR_BYTE[char] for char in self.names[i])
            else:
                data += ADDED[i - len(self.names)].encode()
        return data.decode("utf-8", "replace")

    def save(self, path):
        """Hugging Face tokenizer.json."""
        added = [
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": text in SPECIAL,
            }
            for text, i in self.added.items()
        ]
        split = {
            "type": "Split",
            "pattern": {"Regex": QWEN_PATTERN},
            "behavior": "Isolated",
            "invert": False,
        }
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        document = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.ids,
                "merges": [f"{a} {b}" for a, b in self.merges],
            },
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False, indent=0)
