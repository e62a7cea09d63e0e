"""The goldens of the block formats against ggml's own C functions, by way of its shared library.

usage: compare_blocks.py
"""

import ctypes
import sys
from pathlib import Path

import gguf
import llama_cpp.llama_cpp  # loads libggml-base
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import make_blocks  # noqa: E402

SYMBOLS = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
SYMBOLS |= {n: "dequantize_row_" + n.lower() for n in ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4")}


def ggml_library():
    """The library that holds the dequantizers; already loaded, so its name is enough."""
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    return ctypes.CDLL(str(folder / "libggml-base.so"))


def main():
    lib, bad = ggml_library(), 0
    for k, (name, (values, _, _)) in enumerate(make_blocks.TYPES.items()):
        function = getattr(lib, SYMBOLS.get(name, "dequantize_row_" + name.replace("Q", "q")))
        raw = make_blocks.random_blocks(name, 0x9E3779B97F4A7C15 + k)
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        got = np.empty(want.shape, dtype=np.float32)
        pointer = ctypes.c_void_p
        function(pointer(raw.ctypes.data), pointer(got.ctypes.data), ctypes.c_int64(got.size))
        differ = int((got.view(np.uint32) != want.astype(np.float32).view(np.uint32)).sum())
        bad += differ > 0
        print(f"{name:7} {got.size} values, {differ} differ from ggml")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
