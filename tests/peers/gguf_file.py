"""The tensors of a GGUF file: read, counted, exchanged. Metadata is passed through as bytes."""

import struct

import numpy as np

# type: (name, elements, bytes of a block)
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}


class Tensor:
    """One entry of the table: name, shape (innermost first), type, and where its bytes lie."""

    def __init__(self, name, shape, kind, at):
        self.name, self.shape, self.kind, self.at = name, shape, kind, at
        self.n = int(np.prod(shape, dtype=np.int64))
        _, elements, size = TYPES[kind]
        self.bytes = self.n // elements * size

    @property
    def type_name(self):
        return TYPES[self.kind][0]


class Gguf:
    """kv: the bytes of all key-value pairs. values: the scalar and text ones by key."""

    def __init__(self, path):
        self.data = np.memmap(path, np.uint8, "r")
        self.pos = 24
        magic, version, n_tensors, self.n_kv = struct.unpack("<4sIQQ", bytes(self.data[:24]))
        if magic != b"GGUF" or version != 3:
            raise SystemExit(f"{path}: no GGUF 3")
        self.values = {}
        for _ in range(self.n_kv):
            key = self.text()
            self.values[key] = self.value(self.take("I"))
        self.kv = bytes(self.data[24 : self.pos])
        self.alignment = self.values.get("general.alignment", 32)
        table = [self.entry() for _ in range(n_tensors)]
        start = self.pos + -self.pos % self.alignment
        self.tensors = {
            name: Tensor(name, shape, kind, start + at) for name, shape, kind, at in table
        }

    def take(self, code):
        size = struct.calcsize(code)
        (v,) = struct.unpack("<" + code, bytes(self.data[self.pos : self.pos + size]))
        self.pos += size
        return v

    def text(self):
        n = self.take("Q")
        self.pos += n
        return bytes(self.data[self.pos - n : self.pos]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.take(SCALARS[kind])
        of, n = self.take("I"), self.take("Q")
        if of == 8:
            for _ in range(n):
                self.text()
        else:
            self.pos += n * struct.calcsize(SCALARS[of])
        return None

    def entry(self):
        name = self.text()
        shape = [self.take("Q") for _ in range(self.take("I"))]
        return name, shape, self.take("I"), self.take("Q")

    def raw(self, tensor):
        return self.data[tensor.at : tensor.at + tensor.bytes]


def write(path, kv, n_kv, alignment, tensors):
    """tensors: [(name, shape, type, bytes)]."""
    table, at = b"", 0
    for name, shape, kind, raw in tensors:
        key = name.encode()
        table += (
            struct.pack("<Q", len(key)) + key + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        )
        table += struct.pack("<IQ", kind, at)
        at += len(raw) + -len(raw) % alignment
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), n_kv) + kv + table
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % alignment))
        for _, _, _, raw in tensors:
            file.write(raw)
            file.write(bytes(-len(raw) % alignment))


def realign(path, out, alignment=32):
    """A copy of the file with another alignment. llama-quantize copies the key general.alignment
    but pads by 32, whatever it says, so that its output is broken for an input of ours."""
    f, key = Gguf(path), b"general.alignment" + struct.pack("<I", 4)
    old, new = (key + struct.pack("<I", n) for n in (f.alignment, alignment))
    tensors = [(t.name, t.shape, t.kind, f.raw(t)) for t in f.tensors.values()]
    write(out, f.kv.replace(old, new), f.n_kv, alignment, tensors)


def exchange(frame, donor, out):
    """Writes `frame` with the tensors that `donor` has too in the donor's types and bytes.

    Returns the bytes of these tensors. A donor's tensor that the frame lacks is an error.
    """
    frame, donor = Gguf(frame), Gguf(donor)
    strangers = [name for name in donor.tensors if name not in frame.tensors]
    if strangers:
        raise SystemExit(f"{strangers[0]}: not in the file to take it")
    tensors, shared = [], 0
    for name, t in frame.tensors.items():
        source = donor if name in donor.tensors else frame
        got = source.tensors[name]
        if got.n != t.n:
            raise SystemExit(f"{name}: {got.shape} against {t.shape}")
        shared += got.bytes if source is donor else 0
        tensors.append((name, t.shape, got.kind, source.raw(got)))
    write(out, frame.kv, frame.n_kv, frame.alignment, tensors)
    return shared


def shared_bytes(path):
    """Bytes of the tensors that llama.cpp knows: all but the backward branch's."""
    return sum(t.bytes for t in Gguf(path).tensors.values() if "ssm_bwd_" not in t.name)
