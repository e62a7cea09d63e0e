"""A budget of bytes on clover-tiny: met from below, spent well, refused below the floor.

usage: sizes.py FOURLEAF MODEL HELDOUT WORKDIR

Five sizes from 4.4 to 6 bits over all weights, typed by the shares that `--size` has without a file
of sensitivities. Wants each file within 2 % of its budget and not above it, and the KL divergence
from the model's own weights (mean of causal and block rows, all tokens of the first prompts) lower
with each. The floor that a refusal names must be possible, and a byte less refused.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

BITS, SLACK, PROMPTS = (4.4, 4.7, 5.0, 5.5, 6.0), 0.02, 60


def call(program, *args):
    argv = [program, *map(str, args)]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def run(program, *args):
    done = call(program, *args)
    if done.returncode:
        raise SystemExit(f"{args[0]}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def sizes_are_met(fourleaf, model, text, reference, out):
    plan = json.loads(run(fourleaf, "quantize", model, out, "--dry-run", "--json"))
    beside = plan["file_bytes"] - plan["bytes"]  # header and padding
    good, last = True, float("inf")
    print("| bits a weight | bytes asked | bytes | of them | KL causal | KL masked | |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for bits in BITS:
        want = int(bits * plan["weights"] / 8) + beside
        run(fourleaf, "quantize", model, out, "--size", want)
        got = out.stat().st_size
        measured = ("--all", "--act", "f32", "--against", reference, "--json")
        said = json.loads(run(fourleaf, "eval", out, text, *measured))
        causal, masked = said["causal"]["kl"], said["masked"]["kl"]
        fine = want * (1 - SLACK) <= got <= want and causal + masked < last
        good, last = good and fine, causal + masked
        print(
            f"| {bits} | {want:,} | {got:,} | {got / want:.2%} | {causal:.2e} | {masked:.2e} "
            f"| {'PASS' if fine else 'FAIL'} |",
            flush=True,
        )
    return good


def floor_holds(fourleaf, model, out):
    out.unlink(missing_ok=True)
    said = call(fourleaf, "quantize", model, out, "--size", "1M")
    named = re.search(r"least that is possible is [^(]*\((\d+) bytes\)", said.stderr)
    if said.returncode == 0 or not named or out.exists():
        print(f"--size 1M: exit {said.returncode}: {said.stderr.strip()} FAIL")
        return False
    floor = int(named[1])
    refused = call(fourleaf, "quantize", model, out, "--size", floor - 1).returncode != 0
    refused = refused and not out.exists()
    run(fourleaf, "quantize", model, out, "--size", floor)
    good = refused and out.stat().st_size == floor
    print(f"the floor is {floor:,} bytes, a byte less is refused: {'PASS' if good else 'FAIL'}")
    return good


def main(fourleaf, model, heldout, work):
    text, reference, out = (work / f"sizes{end}" for end in (".jsonl", ".logits", ".gguf"))
    lines = heldout.read_text(encoding="utf-8").splitlines(keepends=True)[:PROMPTS]
    text.write_text("".join(lines), encoding="utf-8")
    run(fourleaf, "eval", model, text, "--all", "--act", "f32", "--save-logits", reference)
    good = sizes_are_met(fourleaf, model, text, reference, out)
    good &= floor_holds(fourleaf, model, out)
    for made in (text, reference, out):
        made.unlink(missing_ok=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(Path, sys.argv[2:5])))
