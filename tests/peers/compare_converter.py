"""`quantize --arch qwen35moe` of the tiny model against what the rules of llama.cpp make of it.

usage: compare_converter.py WORKDIR

Every tensor of tiny-mtp-mixed.gguf must be in our file with the same shape and values (value heads
permuted, norms + 1, ssm_a), every metadata key that llama.cpp needs with the same value, and
llama.cpp must compute the golden logits from our file.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

import fourleaf
from llama_driver import Llama

MODEL = Path(__file__).resolve().parent.parent / "golden" / "model"
BOUND = 1e-3  # llama.cpp against transformers on the golden file itself: 4e-4


def values(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1)


def trimmed(shape):
    """A trailing 1 is no difference: files have ffn_gate_inp_shexp as {n} and as {n, 1}."""
    shape = [int(n) for n in shape]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return shape


def compare_tensors(ours, want):
    mine, bad = {t.name: t for t in ours.tensors}, 0
    for t in want.tensors:
        m = mine.get(t.name)
        if m is None:
            what = "is missing"
        elif trimmed(m.shape) != trimmed(t.shape):
            what = f"has shape {list(m.shape)}, expected {list(t.shape)}"
        elif not np.allclose(values(m), values(t), rtol=3e-7, atol=0):
            what = f"differs by {np.abs(values(m) - values(t)).max():.1e}"
        else:
            continue
        bad += 1
        print(f"  {t.name} {what}")
    print(
        f"converter: {len(want.tensors) - bad} of {len(want.tensors)} tensors as llama.cpp has them"
    )
    return bad


def compare_keys(ours, want):
    bad = 0
    for key, field in want.fields.items():
        if key.startswith(("GGUF.", "general.name", "split.")):
            continue
        mine = ours.fields.get(key)
        if mine is None or mine.contents() != field.contents():
            bad += 1
            got = "missing" if mine is None else str(mine.contents())[:60]
            print(f"  {key}: {got}, expected {str(field.contents())[:60]}")
    print(f"converter: {bad} metadata keys differ")
    return bad


def main(work):
    work.mkdir(parents=True, exist_ok=True)
    path = work / "converted.gguf"
    path.unlink(missing_ok=True)
    fourleaf.run("quantize", MODEL / "hf", path, "--arch", "qwen35moe", "--type", "f32")
    ours, want = gguf.GGUFReader(path), gguf.GGUFReader(MODEL / "tiny-mtp-mixed.gguf")
    bad = compare_tensors(ours, want) + compare_keys(ours, want)
    llama = Llama(path, 1024)
    ids, ref = np.load(MODEL / "ids_64.npy"), np.load(MODEL / "logits_64.npy")
    error = np.abs(llama.logits(ids) - ref).max() / np.abs(ref).max()
    llama.close()
    print(f"converter: llama.cpp loads our file, its logits are {error:.1e} from transformers'")
    return 0 if bad == 0 and error < BOUND else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
