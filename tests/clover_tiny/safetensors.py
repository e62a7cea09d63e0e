"""Reads and writes the safetensors container: F32, F16 and BF16 tensors as float32 arrays."""

import json
import struct

import numpy as np

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


def to_bf16(values):
    """Nearest-even BF16 bits of finite float32 values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read(path):
    """(tensors, metadata): name -> float32 array, and the string map of the header."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        raw = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = from_bf16(np.frombuffer(raw, np.uint16))
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors, metadata


def write(path, tensors, metadata):
    """tensors: name -> (float32 array, dtype)."""
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, (values, dtype) in sorted(tensors.items()):
        if dtype == "BF16":
            blob = to_bf16(values).tobytes()
        else:
            blob = np.ascontiguousarray(
                values, {"F32": np.float32, "F16": np.float16}[dtype]
            ).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)
