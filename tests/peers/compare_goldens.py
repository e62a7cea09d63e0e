"""Compares goldens made now with the committed ones.

usage: compare_goldens.py NEW COMMITTED

Files are equal byte for byte, but logits only to 2e-5: float32 sums depend on the machine.
"""

import sys
from pathlib import Path

import numpy as np


def same(new, old):
    """'' when equal, else what differs."""
    if not old.exists():
        return "is not committed"
    if "logits" not in new.name:
        return "" if new.read_bytes() == old.read_bytes() else "differs"
    a, b = np.load(new), np.load(old)
    if a.shape != b.shape:
        return f"shape {a.shape}, committed {b.shape}"
    error = np.abs(a - b).max() / np.abs(b).max()
    return "" if error < 2e-5 else f"differs by {error:.1e}"


def main(new_root, old_root):
    files = sorted(p for p in new_root.rglob("*") if p.is_file())
    bad = 0
    for p in files:
        what = same(p, old_root / p.relative_to(new_root))
        if what:
            bad += 1
            print(f"{p.relative_to(new_root)}: {what}")
    print(f"goldens: {len(files) - bad} of {len(files)} files are as committed")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
