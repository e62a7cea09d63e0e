"""Does `fourleaf importance` stay within a memory cap, and read the model once per pass kind?

usage: importance_memory.py CHECKPOINT WORKDIR [--cap BYTES] [--characters N] [--extra ARG...]

CHECKPOINT: of big_checkpoint.py, larger than the cap. Wants: done in a cgroup of `cap` bytes with
a peak RSS within it; bytes read from devices at most twice the model's (causal and block passes)
plus 5 %.
"""

import argparse
import os
import sys
from pathlib import Path

import calibration
from measured_run import Cap, Run

FOURLEAF = os.environ.get("FOURLEAF", "build/fourleaf")
PASS_KINDS = 2


def main(a):
    a.work.mkdir(parents=True, exist_ok=True)
    text, out = a.work / "importance-text", a.work / "importance-out"
    calibration.write(text, 1, a.characters)
    model = sum(f.stat().st_size for f in a.checkpoint.glob("*.safetensors"))
    out.unlink(missing_ok=True)
    cap = Cap(a.cap)
    try:
        argv = [FOURLEAF, "importance", a.checkpoint, f"{text}.jsonl", "-o", out, *(a.extra or [])]
        run = Run(argv, a.work / "importance.log", cap)
        group = cap.peak()
    finally:
        cap.close()
    print(f"model {model / 1e9:.2f} GB, cap {a.cap / 2**30:.2f} GiB, {run.seconds:.0f} s")
    print(f"importance file {out.stat().st_size / 1e9:.2f} GB; group's peak {group >> 20} MiB")
    print(f"largest RSS of each tenth of the run, MiB: {run.tenths()}")
    out.unlink()
    reads = run.read / model
    checks = {
        f"peak RSS {run.peak / 2**30:.2f} GiB, wanted within the cap": run.peak <= a.cap,
        f"read {reads:.2f} times the model, wanted {PASS_KINDS}": reads <= 1.05 * PASS_KINDS,
    }
    for said, good in checks.items():
        print(("PASS  " if good else "FAIL  ") + said)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--cap", type=int, default=3 << 29)
    parser.add_argument("--characters", type=int, default=20_000)
    parser.add_argument("--extra", nargs=argparse.REMAINDER)
    sys.exit(main(parser.parse_args()))
