"""Our logits against those of transformers, for every packing of the tiny models, also in chunks.

usage: compare_transformers.py [GOLDEN_MODEL_DIR]

Bound: the largest difference at most 1e-4 of the largest logit, and the same argmax wherever the
reference's two best are more than 1e-4 of the logit range apart.
"""

import sys
from pathlib import Path

import numpy as np

import fourleaf

BOUND = 1e-4
FLOAT = ("--act", "f32", "--kv", "f32")
PACKINGS = (
    "hf",
    "tiny-f32.gguf",
    "tiny-fused-f16.gguf",
    "tiny-split-bf16-00001-of-00002.gguf",
    "tiny-mtp-mixed.gguf",
)
CHUNKS = {1: (0,), 7: (0, 1, 3), 64: (0, 1, 32, 63), 300: (0, 7, 64, 128)}


def check(folder, packing, prefix, n, chunk):
    """One run; True when within the bounds."""
    ids, ref = np.load(folder / f"{prefix}ids_{n}.npy"), np.load(folder / f"{prefix}logits_{n}.npy")
    options = FLOAT + (("--chunk", chunk) if chunk else ())
    got = fourleaf.logits(folder / packing, ids, *options)
    if got.shape != ref.shape:
        print(f"{packing} {n} tokens: shape {got.shape}, expected {ref.shape}")
        return False
    error = np.abs(got - ref).max() / np.abs(ref).max()
    best = np.sort(ref, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-4 * (ref.max() - ref.min())
    wrong = int((clear & (got.argmax(1) != ref.argmax(1))).sum())
    good = error <= BOUND and wrong == 0
    print(
        f"{packing:38} {n:4} tokens, chunk {chunk or n:3}: error {error:.1e}, "
        f"argmax differs {wrong}{'' if good else '   FAILED'}"
    )
    return good


def main(folder):
    runs = [(p, "", n, c) for p in PACKINGS for n in CHUNKS for c in CHUNKS[n]]
    runs += [("tiny-quantized.gguf", "quantized_", n, c) for n in (1, 7, 64) for c in CHUNKS[n]]
    failed = sum(not check(folder, *r) for r in runs)
    print(f"transformers: {len(runs) - failed} of {len(runs)} comparisons within {BOUND:.0e}")
    return 1 if failed else 0


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "golden" / "model"))
