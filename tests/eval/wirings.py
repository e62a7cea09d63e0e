"""Does `fourleaf probe` find how a model is wired when its file does not say so?

    make all build/release/tests/eval/reexport
    python3 tests/eval/wirings.py WORK [--minutes 7] [--only NAME ...] [--jobs N] [--golden]

Eight wirings of clover-tiny, each probed by one command: five by writing the committed weights
otherwise (tests/eval/reexport.c), three by training them on for --minutes with another wiring
(tests/clover_tiny/train.py --wiring) and exporting them without a word about it. A ninth model has
noise in the branch: its block mode must be refused. Prints one line each and fails if one of them
is not found; --golden writes the probe's tables to tests/golden/probe. The weights stay in WORK,
and what is trained there already is not trained again.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TINY = os.path.join(ROOT, "tests", "clover_tiny")
MODEL = os.path.join(TINY, "model")
DEFINITION = {
    "mask_token_id": 2041,
    "pred_shift": 0,
    "gdn_block_mode": "bidir",
    "gdn_scan": "strict",
    "gdn_combine": "mix",
    "gdn_conv_edge": "zeros",
    "gdn_tail": "clean",
    "block_align": "absolute",
    "commit_mode": "causal",
    "expert_pool_mode": "off",
}
BRANCH = {
    "alpha.weight": "in_proj_a.weight",
    "beta.weight": "in_proj_b.weight",
    "conv1d.weight": "kernel",
    "dt.bias": "dt",
    "mix": "read_out",
    "a": "A_log",
}
# name: what the probe must find beside the definition, in the sections "file", "roles", "clover"
REEXPORTED = {
    "names": {"roles": {f"ssm_bwd_{r}": f"blk.*.gdn_reverse.{n}" for r, n in BRANCH.items()}},
    "norms": {"file": {"norms_zero_centred": True}},
    "decay": {"file": {"decay_as_log": True}},
    "heads": {"file": {"value_heads_grouped": True}},
    "mask": {"clover": {"mask_token_id": 2044}},
}
TRAINED = {
    "shift": {"clover": {"pred_shift": 1}},
    "inclusive": {"clover": {"gdn_scan": "inclusive"}},
    "relative": {"clover": {"block_align": "relative"}},
}
# The committed branch does so little that how it is wired hardly matters: a strong one instead.
FIXED_BRANCH = {"inclusive": 64, "relative": 64}
REFUSED = {"random": {"clover": {"gdn_block_mode": "causal"}}}
PLAIN_GGUF = {"norms_zero_centred": False, "decay_as_log": False, "value_heads_grouped": False}


def run(*command, **options):
    print("$", " ".join(map(str, command)), file=sys.stderr, flush=True)
    return subprocess.run([str(c) for c in command], check=True, **options)


def reexport(work, name):
    path = os.path.join(work, name + ".gguf")
    program = os.path.join(ROOT, "build", "release", "tests", "eval", "reexport")
    run(program, MODEL, path, name)
    return path


def train(work, name, minutes):
    """From the committed weights; a new optimizer, no copying, the rate falling over the last half."""
    out, folder = os.path.join(work, name + ".run"), os.path.join(work, name)
    checkpoint = os.path.join(out, "checkpoint.pt")
    if name in FIXED_BRANCH:
        minutes *= 1.5
    schedule = ("--minutes", minutes, "--copy", 0, "--decay", minutes / 2, "--lr", 1e-3)
    wiring = ("--wiring", name, "--block-weight", 3, "--seed", 7)
    if name in FIXED_BRANCH:
        wiring += ("--fixed-branch", FIXED_BRANCH[name])
    if not os.path.exists(checkpoint):
        script = os.path.join(TINY, "train.py")
        run("/usr/bin/python3", script, "--out", out, "--init", MODEL, *schedule, *wiring)
    run("/usr/bin/python3", os.path.join(TINY, "export.py"), checkpoint, folder)
    return folder


def probe(work, name, path):
    environment = dict(os.environ, XDG_CACHE_HOME=os.path.join(work, "cache"))
    program = os.path.join(ROOT, "build", "fourleaf")
    result = run(program, "probe", path, "--json", env=environment, stdout=subprocess.PIPE)
    found = json.loads(result.stdout)
    with open(os.path.join(work, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    return found


def differences(found, expected, gguf):
    """What was found otherwise than wanted, as text."""
    wanted = {
        "file": dict(PLAIN_GGUF if gguf else {}, **expected.get("file", {})),
        "roles": expected.get("roles", {}),
        "clover": dict(DEFINITION, **expected.get("clover", {})),
    }
    return [
        f"{section}.{key}: {found.get(section, {}).get(key)} for {value}"
        for section, values in wanted.items()
        for key, value in values.items()
        if found.get(section, {}).get(key) != value
    ]


def write_golden(name, found):
    folder = os.path.join(ROOT, "tests", "golden", "probe")
    os.makedirs(folder, exist_ok=True)
    for entry in found["table"]:
        for key in ("mean", "diff", "se"):
            entry[key] = round(entry[key], 6)
        entry["nll"] = [round(x, 4) for x in entry["nll"]]
    with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("--minutes", type=float, default=7, help="of training; half as much more with a new branch")
    parser.add_argument("--only", nargs="*", help="names of wirings")
    parser.add_argument("--jobs", type=int, default=1, help="probes at a time")
    parser.add_argument("--golden", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    right, wirings = 0, {**REEXPORTED, **TRAINED, **REFUSED}
    chosen = args.only or list(wirings)
    paths = {
        name: train(args.work, name, args.minutes) if name in TRAINED else reexport(args.work, name)
        for name in chosen
    }
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda name: probe(args.work, name, paths[name]), chosen)
        for name, found in zip(chosen, results):
            wrong = differences(found, wirings[name], name not in TRAINED)
            if name in REFUSED and found["earned"]:
                wrong.append("block mode counts as earned")
            right += not wrong
            print(f"{name:10s} {'found' if not wrong else '; '.join(wrong)}", flush=True)
            if args.golden:
                write_golden(name, found)
    print(f"{right} of {len(chosen)}")
    return right < len(chosen)


if __name__ == "__main__":
    sys.exit(main())
