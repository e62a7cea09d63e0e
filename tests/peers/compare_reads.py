"""Reads of expert-sized extents beside fio's: same file, size, depth and engine, O_DIRECT.

usage: compare_reads.py FILE BENCH OUT.jsonl [--bytes N] [--reads N] [--pairs N]

BENCH is bench/io. At each depth the two alternate, `--pairs` times, first one, then the other one
in front. Wanted: the median of the pairs' ratios is at least 0.90, and the median of the processor
time that ours takes is at most 5 % of one core. Beside it what it takes a byte, times fio's: where
the drive is a virtual one, most of it is what the host takes for being told of a read, on both
sides. Every sample goes to OUT.
"""

import argparse
import json
import random
import statistics
import subprocess
from pathlib import Path

DEPTHS = (1, 4, 8)
RATIO, CPU = 0.90, 0.05


def output(argv):
    argv = [str(a) for a in argv]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def fio(a, depth):
    """GB/s and the share of one core."""
    argv = ["fio", "--name=reads", f"--filename={a.file}", "--readonly", "--rw=randread"]
    argv += [f"--bs={a.bytes}", "--blockalign=4096", "--ioengine=io_uring", "--direct=1"]
    argv += ["--fixedbufs=1", "--registerfiles=1", f"--iodepth={depth}"]
    argv += [f"--number_ios={a.reads}", f"--size={a.file.stat().st_size // 4096 * 4096}"]
    argv += [f"--randseed={random.getrandbits(31)}", "--output-format=json"]
    text = output(argv)
    job = json.loads(text[text.index("{") :])["jobs"][0]
    read = job["read"]
    if read["total_ios"] != a.reads or job["error"]:
        raise SystemExit(f"fio: {read['total_ios']} of {a.reads} reads, error {job['error']}")
    rate = read["io_bytes"] / (read["runtime"] * 1e6)
    return rate, (job["usr_cpu"] + job["sys_cpu"]) / 100


def ours(a, depth):
    line = json.loads(output([a.bench, a.file, a.bytes, a.reads, depth, 1, "uring"]))
    if line["backend"] != "uring" or line["reads"] != a.reads:
        raise SystemExit(f"bench/io: {line}")
    return line["gb_s"], line["cpu_seconds"] / line["seconds"]


def compare(a, depth, out):
    """True when both targets are met."""
    ratios, rates, cpus, cpu_ratios = [], [], [], []
    for pair in range(a.pairs):
        sides = {"ours": ours, "fio": fio}
        got = {}
        for who in sorted(sides, reverse=pair % 2 == 0):
            got[who] = sides[who](a, depth)
            entry = {"who": who, "depth": depth, "pair": pair, "bytes": a.bytes, "reads": a.reads}
            entry |= {"gb_s": got[who][0], "cpu": got[who][1]}
            print(json.dumps(entry), file=out, flush=True)
        ratios.append(got["ours"][0] / got["fio"][0])
        rates.append(got["ours"][0])
        cpus.append(got["ours"][1])
        cpu_ratios.append(got["ours"][1] / got["fio"][1] / ratios[-1])
    ratio, cpu, a_byte = (statistics.median(x) for x in (ratios, cpus, cpu_ratios))
    print(
        f"  depth {depth}: {ratio:.2f} times fio ({min(ratios):.2f} to {max(ratios):.2f}),"
        f" {RATIO:.2f} wanted; median {statistics.median(rates):.2f} GB/s;"
        f" {100 * cpu:.1f} % of a core, at most {100 * CPU:.0f} wanted;"
        f" {a_byte:.2f} times fio's a byte"
    )
    return ratio >= RATIO and cpu <= CPU


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("bench", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=int, default=589824)
    parser.add_argument("--reads", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=11)
    a = parser.parse_args()
    print(f"{a.reads} reads of {a.bytes} bytes, {a.pairs} pairs; samples in {a.out}")
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with open(a.out, "w") as out:
        good = [compare(a, depth, out) for depth in DEPTHS]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
