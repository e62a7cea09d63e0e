"""Golden floats of the GGUF block types, from the `gguf` package.

10,000 random blocks of sixteen types are 90 MB of floats, so the file does not hold them: it holds
a generator's seed, and
FNV-1a hashes of the raw bytes and of the floats. A C test repeats the generator. The raw hash tells
a wrong generator from a wrong
dequantizer; the first 16 blocks are committed in full for debugging.

usage: make_blocks.py OUTDIR
"""

import sys
from pathlib import Path

import gguf
import numpy as np

N_BLOCKS = 10000
N_FULL = 16
M64 = (1 << 64) - 1

# type -> (values per block, bytes per block, offsets of float16 scales). F16 and BF16 are given as
# blocks of 32 values.
TYPES = {
    "F16": (32, 64, range(0, 64, 2)),
    "BF16": (32, 64, ()),
    "Q8_0": (32, 34, (0,)),
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
    "IQ4_NL": (32, 18, (0,)),
    "IQ4_XS": (256, 136, (0,)),
    "MXFP4": (32, 17, ()),
    "NVFP4": (64, 36, ()),
}


def xorshift64star(seed, n_bytes):
    """n_bytes of xorshift64*, each 64-bit output little endian; the last word is cut."""
    x, words = seed, []
    for _ in range((n_bytes + 7) // 8):
        x ^= x >> 12
        x = (x ^ (x << 25)) & M64
        x ^= x >> 27
        words.append((x * 0x2545F4914F6CDD1D) & M64)
    return np.array(words, dtype="<u8").view(np.uint8)[:n_bytes].copy()


def fnv1a64(data):
    """FNV-1a, 64 bits, over little-endian u32 words (not bytes: four times less work, and every
    tested size is a multiple of 4).
    """
    h = 0xCBF29CE484222325
    for w in np.frombuffer(data, dtype="<u4").tolist():
        h = ((h ^ w) * 0x100000001B3) & M64
    return h


def random_blocks(name, seed):
    """[N_BLOCKS, block bytes] u8 with every scale finite; the rules are those of README.md."""
    _, size, f16_at = TYPES[name]
    b = xorshift64star(seed, N_BLOCKS * size).reshape(N_BLOCKS, size)
    for at in f16_at:  # exponent of all ones: clear its top bit
        bad = (b[:, at + 1] & 0x7C) == 0x7C
        b[bad, at + 1] &= 0xBF
    if name == "BF16":
        h = b.view("<u2")
        h[(h & 0x7F80) == 0x7F80] &= 0xBFFF
    if name == "MXFP4":
        b[b[:, 0] >= 0xF8, 0] -= 8
    if name == "NVFP4":
        b[:, :4] &= 0x7F
    return b


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# type id block_values block_bytes seed n_blocks fnv_raw fnv_floats"]
    for k, (name, (values, size, _)) in enumerate(TYPES.items()):
        seed = 0x9E3779B97F4A7C15 + k
        raw = random_blocks(name, seed)
        qtype = gguf.GGMLQuantizationType[name]
        floats = gguf.quants.dequantize(raw, qtype).astype("<f4", copy=False)
        assert floats.shape == (N_BLOCKS, values) and np.isfinite(floats).all(), name
        np.save(out / f"block_{name}.npy", np.ascontiguousarray(floats[:N_FULL]))
        lines.append(
            f"{name} {int(qtype)} {values} {size} {seed:016x} {N_BLOCKS} "
            f"{fnv1a64(raw.tobytes()):016x} {fnv1a64(floats.tobytes()):016x}"
        )
    (out / "blocks.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
