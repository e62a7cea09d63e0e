"""Weights per second and memory of `fourleaf quantize`, beside llama.cpp's llama-quantize.

usage: quantize_rate.py CHECKPOINT WORKDIR LLAMA_QUANTIZE [--rounds N] [--threads N] [--ours ARG...]

CHECKPOINT: a folder that big_checkpoint.py made. The rival reads the same weights as one BF16 GGUF,
which is made in WORKDIR first. The two take turns, first one ahead, then the other; the figure is
the median of the rounds' ratios. --ours: what ours is told beyond --threads (default: --type q4_k).
Memory is what wait4 says of the process (the figure of /usr/bin/time -v) and samples of its RSS.
Wants: ours at most 2 GiB, flat (the second half's largest sample at most 1.1 times the first
half's), 1.3 times the rival's rate.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import gguf_file
from measured_run import Run

FOURLEAF = os.environ.get("FOURLEAF", "build/fourleaf")
WANT_PEAK, WANT_FLAT, WANT_RATIO = 2 << 30, 1.1, 1.3


def main(a):
    a.work.mkdir(parents=True, exist_ok=True)
    stock, out = a.work / "rate-stock.gguf", a.work / "rate-out.gguf"
    if not stock.exists():
        made = [FOURLEAF, "quantize", str(a.checkpoint), str(stock), "--type", "bf16"]
        run = Run([*made, "--arch", "qwen35moe"], a.work / "rate-stock.log")
        print(f"BF16 copy: {run.seconds:.0f} s, peak {run.peak >> 20} MiB, tenths {run.tenths()}")
    weights = sum(t.n for t in gguf_file.Gguf(stock).tensors.values())
    ours_argv = [FOURLEAF, "quantize", str(a.checkpoint), str(out), "--threads", str(a.threads)]
    sides = {
        "ours": ours_argv + (a.ours or ["--type", "q4_k"]),
        "llama.cpp": [str(a.llama_quantize), str(stock), str(out), "Q4_K_M", str(a.threads)],
    }
    ratios, ours = [], []
    print("| round | program | seconds | CPU seconds | million weights/s | bits | peak RSS, MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for i in range(a.rounds):
        rate = {}
        for name in sorted(sides, reverse=i % 2 == 0):
            out.unlink(missing_ok=True)
            run = Run(sides[name], a.work / f"rate-{name}.log")
            rate[name] = weights / run.seconds
            bits = 8 * out.stat().st_size / weights
            print(
                f"| {i + 1} | {name} | {run.seconds:.1f} | {run.cpu:.1f} | {rate[name] / 1e6:.1f} "
                f"| {bits:.2f} | {run.peak >> 20} |",
                flush=True,
            )
            ours += [run] if name == "ours" else []
        ratios.append(rate["ours"] / rate["llama.cpp"])
    out.unlink(missing_ok=True)
    peak, flat = max(r.peak for r in ours), max(r.flatness() for r in ours)
    ratio = statistics.median(ratios)
    print(f"ours, largest RSS of each tenth of a run, MiB: {ours[-1].tenths()}")
    checks = {
        f"peak RSS {peak / 2**30:.2f} GiB, wanted at most 2": peak <= WANT_PEAK,
        f"second half over first {flat:.2f}, wanted at most {WANT_FLAT}": flat <= WANT_FLAT,
        f"rate over llama.cpp's {ratio:.2f} (rounds {', '.join(f'{r:.2f}' for r in ratios)}), "
        f"wanted {WANT_RATIO}": ratio >= WANT_RATIO,
    }
    for text, good in checks.items():
        print(("PASS  " if good else "FAIL  ") + text)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("llama_quantize", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", nargs=argparse.REMAINDER)
    sys.exit(main(parser.parse_args()))
