"""A file of ours in llama.cpp: llama-perplexity's figure against `fourleaf eval`'s.

usage: compare_perplexity.py MODEL HELDOUT.jsonl WORKDIR LLAMA_BIN [--quantize ARGS]

The same windows of the same plain text (512 tokens, the second half scored). Wants the two
perplexities within 0.5 % of each other, for a BF16 file and for the one that --quantize describes
(default: --type q4_k).
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fourleaf

WANT = 0.005
N_CTX = 512


def theirs(tool, model, text):
    argv = [tool, "-m", model, "-f", text, "-c", N_CTX, "-b", N_CTX, "-t", 2]
    done = subprocess.run(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, timeout=3600
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", said)
    if done.returncode or not found:
        raise SystemExit(f"{tool}: exit {done.returncode}\n{said[-2000:]}")
    return float(found[1])


def ours(model, text):
    options = ("--ctx", N_CTX, "--passes", "causal", "--json")
    return json.loads(fourleaf.run("eval", model, text, *options, timeout=3600))["causal"]


def main(a):
    a.work.mkdir(parents=True, exist_ok=True)
    text, good = a.work / "perplexity.txt", True
    rows = [json.loads(line) for line in a.heldout.read_text(encoding="utf-8").splitlines()]
    text.write_text("".join(r["prompt"] + r["completion"] for r in rows), encoding="utf-8")
    print("| file | llama.cpp | ours | apart | tokens |\n| --- | --- | --- | --- | --- |")
    for options in ("--type bf16", a.quantize):
        model = a.work / "perplexity.gguf"
        model.unlink(missing_ok=True)
        fourleaf.run("quantize", a.model, model, "--arch", "qwen35moe", *shlex.split(options))
        p, q = theirs(a.llama_bin / "llama-perplexity", model, text), ours(model, text)
        apart = abs(q["perplexity"] / p - 1)
        good &= apart <= WANT
        print(f"| {options} | {p:.4f} | {q['perplexity']:.4f} | {apart:.3%} | {q['rows']} |")
    print("perplexity: " + ("within bounds" if good else "FAILED"))
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--quantize", default="--type q4_k")
    sys.exit(main(parser.parse_args()))
