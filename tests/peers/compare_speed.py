"""Tokens per second beside llama.cpp's, from one GGUF file in one run.

usage: compare_speed.py MODEL BENCH OUT.jsonl NAME=BIN... [--runs N] [--threads N]

MODEL is written by bench/synth, BENCH is bench/model, each BIN a folder with llama-bench and
llama-perplexity. NAME says what llama.cpp was built for: native, or avx2, to which ours is then
limited as well. Measured: one row at a time, passes of 32 rows, a prefill of 512.

For each of the three the rival runs in the mode that is its fastest here: flash attention on or off,
weights repacked or not, tried once each; a mode in which its perplexity is not a finite number, with
that many rows a pass, is left out. Then the programs alternate, `--runs` times. A figure is the
median of the runs, each the median of its samples. Every sample goes to OUT.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

ROWS = (1, 32, 512)
SAMPLES = 3
TARGETS = {"native": (1.4, 2.5, 2.5), "avx2": (1.3, 1.7, 1.2)}
MODES = [(fa, repack) for fa in (0, 1) for repack in (1, 0)]
TEXT = "A leaf, a leaf, and two more leaves make four. " * 40


def output(argv):
    """Standard output and standard error of a command that must succeed."""
    argv = [str(a) for a in argv]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Log:
    """Raw samples, and tokens per second as their medians."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "w")

    def add(self, who, arm, run, line, rows, tokens, ns):
        entry = {"who": who, "arm": arm, "run": run, "rows": rows, "tokens": tokens, "ns": ns}
        print(json.dumps(entry | {"raw": line}), file=self.file, flush=True)
        return 1e9 * tokens / statistics.median(ns)


def rival(log, bins, arm, run, mode, model, threads):
    """{rows: tokens per second}"""
    fa, repack = mode
    argv = [bins / "llama-bench", "-m", model, "-t", threads, "-p", "32,512", "-n", "32", "-b", 512]
    argv += ["-ub", 512, "-r", SAMPLES, "-fa", fa, "--repack", repack, "-o", "jsonl"]
    rates = {}
    for line in json_lines(output(argv)[0]):
        rows = line["n_prompt"] or 1
        tokens = line["n_prompt"] + line["n_gen"]
        rates[rows] = log.add("llama.cpp", arm, run, line, rows, tokens, line["samples_ns"])
    return rates


def ours(log, bench, arm, run, model, threads):
    argv = [bench, model, "--rows", ",".join(map(str, ROWS)), "--threads", threads]
    argv += ["--samples", SAMPLES] + (["--cpu", arm] if arm != "native" else [])
    rates = {}
    for line in json_lines(output(argv)[0]):
        tokens = line["rows"] * line["passes"]
        rates[line["rows"]] = log.add("ours", arm, run, line, line["rows"], tokens, line["ns"])
    return rates


def is_finite(bins, mode, rows, model, threads):
    """Does llama.cpp's perplexity come out as a number in passes of so many rows?"""
    fa, repack = mode
    ctx = max(rows, 64)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(TEXT)
        text.flush()
        argv = [bins / "llama-perplexity", "-m", model, "-f", text.name, "-t", threads, "-c", ctx]
        argv += ["-b", ctx, "-ub", rows, "--chunks", 1, "-fa", "on" if fa else "off"]
        out, err = output(argv + ([] if repack else ["--no-repack"]))
    found = re.search(r"Final estimate: PPL = (\S+)", out + err)
    return bool(found) and math.isfinite(float(found[1]))


def fastest(log, bins, arm, model, threads):
    """{rows: the rival's fastest mode whose output is finite}"""
    tried = {mode: rival(log, bins, arm, -1, mode, model, threads) for mode in MODES}
    best = {}
    for rows in ROWS:
        for mode in sorted(MODES, key=lambda m: -tried[m][rows]):
            if is_finite(bins, mode, rows, model, threads):
                best[rows] = mode
                break
            print(f"  {arm}, {rows} rows: mode {mode} of llama.cpp is not finite, left out")
        else:
            raise SystemExit(f"{arm}: no mode of llama.cpp gives finite numbers")
    return best


def name_of(mode):
    return f"fa {'on' if mode[0] else 'off'}, {'repacked' if mode[1] else 'not repacked'}"


def compare(log, arm, bins, a):
    """True when every target is met."""
    best = fastest(log, bins, arm, a.model, a.threads)
    theirs, mine = {r: [] for r in ROWS}, {r: [] for r in ROWS}
    for run in range(a.runs):
        for mode in sorted(set(best.values())):
            rates = rival(log, bins, arm, run, mode, a.model, a.threads)
            for rows in ROWS:
                if best[rows] == mode:
                    theirs[rows].append(rates[rows])
        for rows, rate in ours(log, a.bench, arm, run, a.model, a.threads).items():
            mine[rows].append(rate)
    good = True
    for rows, target in zip(ROWS, TARGETS[arm]):
        x, y = statistics.median(mine[rows]), statistics.median(theirs[rows])
        good &= x >= target * y
        print(
            f"  {arm:6} {rows:3} rows: {x:7.1f} tokens/s, llama.cpp {y:7.1f}"
            f" ({name_of(best[rows])}): {x / y:.2f} times, {target} wanted"
        )
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("bench", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("arms", nargs="+", metavar="NAME=BIN")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    log = Log(a.out)
    print(f"{a.threads} threads, {a.runs} alternating runs; samples in {a.out}")
    good = [compare(log, name, Path(b), a) for name, b in (arm.split("=", 1) for arm in a.arms)]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
