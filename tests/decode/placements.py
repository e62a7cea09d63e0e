"""Runs in which every two values of two settings meet at least once: prints placements.h.

usage: placements.py > placements.h

Greedy: each run starts from a pair that is still missing and takes, setting by setting, the value
that meets most missing pairs. The first seed below that needs no more than 64 runs, filled up to 64
with random ones.
"""

import itertools
import random

SETTINGS = {
    "mode": ["FL_GEN_AR", "FL_GEN_BLOCK", "FL_GEN_SPEC"],
    "percent": ["0", "10", "25", "50", "75", "100"],
    "host": ["0", "50", "100"],
    "lanes": ["FL_LANES_AUTO", "FL_LANES_CPU", "FL_LANES_DEVICE"],
    "policy": ["FL_POLICY_LRU", "FL_POLICY_LFU", "FL_POLICY_BLOCK"],
    "no_prefetch": ["false", "true"],
    "io": ['"uring"', '"pread"', '"fake"'],
    "threads": [str(n) for n in range(1, 9)],
    "chunk": ["16", "33", "64", "512"],
    "restored": ["false", "true"],
}
RUNS = 64
NAMES = list(SETTINGS)


def pairs(run):
    return {((a, run[a]), (b, run[b])) for a, b in itertools.combinations(NAMES, 2)}


def all_pairs():
    return {
        ((a, x), (b, y))
        for a, b in itertools.combinations(NAMES, 2)
        for x in SETTINGS[a]
        for y in SETTINGS[b]
    }


def met(run, missing):
    return len(pairs(run) & missing) if len(run) == len(NAMES) else sum(
        ((a, run[a]), (b, run[b])) in missing
        for a, b in itertools.combinations([n for n in NAMES if n in run], 2)
    )


def grow(first, missing, rng):
    run = dict(first)
    for name in rng.sample(NAMES, len(NAMES)):
        if name in run:
            continue
        values = rng.sample(SETTINGS[name], len(SETTINGS[name]))
        run[name] = max(values, key=lambda v: met({**run, name: v}, missing))
    return run


def draw(seed):
    rng, missing, runs = random.Random(seed), all_pairs(), []
    while missing:
        run = grow(rng.choice(sorted(missing)), missing, rng)
        missing -= pairs(run)
        runs.append(run)
    while len(runs) < RUNS:
        runs.append({name: rng.choice(values) for name, values in SETTINGS.items()})
    return runs


def main():
    runs = next(r for r in map(draw, itertools.count()) if len(r) <= RUNS)
    print("/* Made by tests/decode/placements.py: any two values of two settings meet in a run. */")
    print("static const placement placements[] = {")
    for run in runs:
        print("    {" + ", ".join(run[name] for name in NAMES) + "},")
    print("};")


main()
