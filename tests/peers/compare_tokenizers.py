"""Our tokenizer against Hugging Face's on strings that no golden holds.

usage: compare_tokenizers.py WORKDIR [SEED]

The real vocabulary in full, and clover-tiny's; 40,000 valid and 4,000 invalid strings each. Also:
the tokenizer.json that expand_vocab.h writes is what Hugging Face reads as the same tokenizer.
"""

import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "golden"))
import make_tokenizer as mt  # noqa: E402
from textgen import TextGen  # noqa: E402

TOOL = ROOT / "build/release/tests/peers/tokenize_items"
N_VALID, N_INVALID = 40000, 4000


def strings(tok, words, added, seed):
    """Valid ones first. Those on which NFC tables of different Unicode versions differ are left out
    by drawing from stable code points."""
    gen = TextGen(seed, words, added, mt.stable_points(tok))
    return [gen.one().encode("utf-8") for _ in range(N_VALID)], [
        gen.invalid() for _ in range(N_INVALID)
    ]


def compare(name, json_path, words, added, work, seed):
    """True when the C tool finds no difference."""
    tok = Tokenizer.from_file(str(json_path))
    valid, invalid = strings(tok, words, added, seed)
    items = [(b, tok.encode(b.decode("utf-8", "replace")).ids) for b in valid + invalid]
    path = work / f"items_{name}.bin"
    mt.write_items(path, items)
    done = subprocess.run([TOOL, json_path, path], capture_output=True, text=True)
    print(f"tokenizers, {name}: {done.stdout.strip()}{done.stderr.strip()}")
    return done.returncode == 0


def main(work, seed):
    subprocess.run(["make", "-s", str(TOOL.relative_to(ROOT))], cwd=ROOT, check=True)
    work.mkdir(parents=True, exist_ok=True)
    golden, real = HERE.parent / "golden" / "tokenizer", work / "qwen36_tokenizer.json"
    head = golden / "qwen36_head.json"
    subprocess.run([TOOL, "--expand", golden / "qwen36.vocab", head, real], check=True)
    tok, bad = Tokenizer.from_file(str(real)), 0
    for raw, ids in mt.read_items(golden / "qwen36_strings.bin"):
        bad += tok.encode(raw.decode("utf-8")).ids != ids
    print(f"tokenizers, expanded vocabulary read by Hugging Face: {bad} of its goldens differ")
    words = mt.vocabulary_words(mt.load_ranks())
    good = compare("qwen36", real, words, mt.ADDED, work, seed) and bad == 0
    tiny = ROOT / "tests/clover_tiny/model/tokenizer.json"
    if tiny.exists():
        added = [
            t.content for t in Tokenizer.from_file(str(tiny)).get_added_tokens_decoder().values()
        ]
        good = compare("clover_tiny", tiny, words, added, work, seed) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
