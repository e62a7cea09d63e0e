"""Runs the program under test and reads what it writes."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

PROGRAM = os.environ.get("FOURLEAF", "build/fourleaf")


def run(*args, timeout=900):
    """Standard output as bytes. Fails aloud, with the program's own words."""
    argv = [PROGRAM, *map(str, args)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    if done.returncode != 0:
        shown = " ".join(a if len(a) < 80 else a[:77] + "..." for a in argv)
        raise SystemExit(f"{shown}: exit {done.returncode}\n{done.stderr.decode(errors='replace')}")
    return done.stdout


def logits(model, ids, *options):
    """[len(ids), vocab] float32: the logits of every position."""
    with tempfile.TemporaryDirectory() as d:
        out = Path(d) / "logits.npy"
        text = ",".join(str(int(i)) for i in ids)
        every_row = () if "--denoise" in options else ("--all",)  # a block pass gives all its rows
        run("logits", model, "--ids", text, *every_row, *options, "-o", out)
        return np.load(out)


def log_softmax(x):
    """Rows of log probabilities in float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
