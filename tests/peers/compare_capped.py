"""Tokens per second where the model does not fit: memory, page cache included, is capped.

usage: compare_capped.py MODEL FOURLEAF BENCH LLAMA_BENCH OUT.jsonl [--share X] [--runs N]
                         [--tokens N] [--threads N]

BENCH is bench/model. In a control group of `share` of the file's bytes the two alternate, one token
after the other, random ones: ours as its default plan has it, llama.cpp with mmap and without
repacking, which takes more memory than there is. Wanted: the median of ours at least 8 times the
other's, no major fault of ours after the load, nothing of the file in the page cache behind it,
and `run` within the cap, with the text that it has without one. Every sample goes to OUT.
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

from measured_run import Cap

TIMES = 8


def drop_cache(path):
    """What another group has cached of the file is not counted in this one."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path):
    """Bytes of the file in the page cache."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", path]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def output(argv, limit):
    """Standard output, and the peak of the group."""
    argv = [str(a) for a in argv]
    cap = Cap(limit) if limit else None
    try:
        enter = cap.enter if cap else None
        kinds = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(argv, preexec_fn=enter, **kinds)
        peak = cap.peak() if cap else 0
    finally:
        if cap:
            cap.close()
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout, peak


def theirs(a, limit):
    argv = [a.llama, "-m", a.model, "-t", a.threads, "-p", 0, "-n", a.tokens, "-r", 1]
    text, peak = output(argv + ["--repack", 0, "-lm", "mmap", "-o", "jsonl"], limit)
    line = json.loads(text.splitlines()[-1])
    return {"tokens": line["n_gen"], "ns": line["samples_ns"], "peak": peak}


def ours(a, limit):
    argv = [a.bench, a.model, "--rows", 1, "--samples", 1, "--threads", a.threads]
    text, peak = output(argv, limit)
    line = json.loads(text)
    more = {"major_faults": line["major_faults"], "cached": cached(a.model)}
    return {"tokens": line["passes"], "ns": line["ns"], "peak": peak} | more


def answer(a, limit):
    argv = [a.fourleaf, "run", a.model, "--raw", "-p", "A leaf, a leaf, and two more leaves"]
    argv += ["--mode", "ar", "--max-tokens", 8, "--ignore-eos", "--temp", 0, "--json"]
    text, peak = output(argv + ["--threads", a.threads], limit)
    return json.loads(text)["ids"], peak


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "fourleaf", "bench", "llama", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    file = a.model.stat().st_size
    limit = int(file * a.share) // 4096 * 4096
    print(f"{file / 1e9:.2f} GB under {limit / 1e9:.2f} GB, {a.threads} threads, {a.runs} runs")
    sides = {"ours": ours, "llama.cpp": theirs}
    rates = {who: [] for who in sides}
    faults = left = 0
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with open(a.out, "w") as out:
        for run in range(a.runs):
            for who, side in sides.items():
                drop_cache(a.model)
                got = side(a, limit)
                print(json.dumps({"who": who, "run": run, "cap": limit} | got), file=out, flush=True)
                rates[who].append(1e9 * got["tokens"] / statistics.median(got["ns"]))
                faults += got.get("major_faults", 0)
                left = max(left, got.get("cached", 0))
    drop_cache(a.model)
    capped, peak = answer(a, limit)
    left = max(left, cached(a.model))
    x, y = (statistics.median(rates[who]) for who in sides)
    checks = {
        f"{x:.2f} tokens/s, llama.cpp {y:.2f}: {x / y:.1f} times, {TIMES} wanted": x >= TIMES * y,
        f"{faults} major faults after the load": faults == 0,
        f"{left} bytes of the file left in the page cache": left <= 1 << 20,
        f"run within the cap, {peak / 1e9:.2f} GB at most, the same text": capped == answer(a, 0)[0],
    }
    for said, good in checks.items():
        print(("PASS  " if good else "FAIL  ") + said)
    raise SystemExit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
