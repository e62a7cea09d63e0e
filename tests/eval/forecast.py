"""What plan expects of a slow link against what runs then do.

usage: forecast.py FOURLEAF MODEL WORKDIR --vram SIZE [--rates GB/s,GB/s...] [--seed N] [--runs N]

For each rate of the host device's copy engine (0.25, 1, 4 and one drawn at random): calibrate once,
write the plan to a file, then run AR and, where the model knows masks, block mode, on one thread,
every expert that is not in device memory behind a copy. Wants the median of the runs within 15 % of
the plan's figure: tokens per second in AR, passes per second in block mode, for how many tokens a
pass of made-up weights commits is no property of the machine. Where a pass computes at least as
long as it copies, at least 80 % of the bytes that passes need must be there when they are asked
for, and a run that reads nothing ahead must be 1.5 times as slow. Prints each run's figure.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
from pathlib import Path

WANT, READY, SLOWER, TOKENS = 0.15, 0.8, 1.5, 48
PROMPT = "Tell me about the sea, the wind and the ships that sail on it."


def call(a, env, *args):
    argv = [a.fourleaf, *map(str, args)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{args[0]}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def passes_of(r):
    return r["clean_passes"] + r["denoise_passes"] + r["fused_passes"]


def rate_of(r, mode):
    return r["tokens_per_s"] if mode == "ar" else passes_of(r) / r["decode_s"]


def measure(a, env, options, mode):
    args = ("--mode", mode, "-p", PROMPT, "--max-tokens", TOKENS, "--temp", 0, "--ignore-eos")
    return call(a, env, "run", a.model, *options, *args, "--repeat-stop", "off", "--json")


def check(a, env, options, mode, expected):
    want = expected["tokens_per_s"] if mode == "ar" else 1e9 / expected["pass_ns"]
    runs = [measure(a, env, options, mode) for _ in range(a.runs)]
    rates = [rate_of(r, mode) for r in runs]
    got = statistics.median(rates)
    good = abs(got / want - 1) <= WANT
    print(f"  {mode}: planned {want:.2f}, {got:.2f} ({got / want - 1:+.1%}) of",
          " ".join(f"{x:.2f}" for x in rates), "PASS" if good else "FAIL", flush=True)
    ready = statistics.median(
        r["experts"]["ready_bytes"] / max(r["experts"]["needed_bytes"], 1) for r in runs
    )
    without = rate_of(measure(a, env, (*options, "--prefetch", "off"), mode), mode)
    hides = expected["copy_ns"] <= expected["compute_ns"]
    fine = not hides or (ready >= READY and got / without >= SLOWER)
    print(f"  {mode}: {ready:.1%} of needed bytes were there, {got / without:.2f} times as fast as "
          f"without reading ahead, compute {expected['compute_ns'] / 1e6:.1f} ms, copies "
          f"{expected['copy_ns'] / 1e6:.1f} ms a pass", "PASS" if fine else "FAIL", flush=True)
    return good and fine


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("\n")[2].removeprefix("usage: "))
    p.add_argument("fourleaf")
    p.add_argument("model")
    p.add_argument("work", type=Path)
    p.add_argument("--vram", required=True)
    p.add_argument("--rates", default="0.25,1,4")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--runs", type=int, default=5)
    a = p.parse_args()
    drawn = round(2 ** random.Random(a.seed).uniform(-3, 3), 3)
    print(f"rate drawn with --seed {a.seed}: {drawn} GB/s")
    a.work.mkdir(parents=True, exist_ok=True)
    good = True
    for gb in [*map(float, a.rates.split(",")), drawn]:
        env = dict(os.environ, XDG_CACHE_HOME=str(a.work / f"cache-{gb}"))
        options = ("--vram", a.vram, "--lanes", "device", "--threads", 1)
        options += ("--link-rate", int(gb * 1e9))
        call(a, env, "calibrate", a.model, *options, "--json")
        options += ("--profile", "none")  # else each run would place its experts anew
        plan = call(a, env, "plan", a.model, *options, "--json")
        (a.work / f"plan-{gb}.json").write_text(json.dumps(plan, indent=1))
        print(f"{gb} GB/s", flush=True)
        for mode in ("ar", "block"):
            if mode in plan["prediction"]["modes"]:
                good &= check(a, env, options, mode, plan["prediction"]["modes"][mode])
    raise SystemExit(0 if good else 1)


main()
