"""A file of ours in llama.cpp: its perplexity of a text against `fourleaf eval`'s.

usage: compare_perplexity.py MODEL HELDOUT.jsonl WORKDIR [--quantize ARGS]

Every prompt with its answer is a sequence of its own. llama.cpp runs as a library: llama-perplexity
reads control tokens as plain text, which clover-tiny has never seen. Wants the two perplexities of
the answers within 0.5 % of each other, for a BF16 file and for the one that --quantize describes
(default: --type q4_k). That of all tokens is shown beside it: prompts were never taught, at nine
nats a token both programs' rounding of activations moves it at random.
"""

import argparse
import json
import math
import shlex
import sys
from pathlib import Path

import fourleaf
from llama_driver import Llama

WANT = 0.005


def theirs(model, rows):
    """{what is scored: (perplexity, tokens)}"""
    llama, losses = Llama(model), {"answers": [], "all": []}
    for row in rows:
        ids = llama.tokenize(row["prompt"] + row["completion"])
        known = len(llama.tokenize(row["prompt"]))
        p = fourleaf.log_softmax(llama.logits(ids)[:-1])
        nll = [-float(at[token]) for at, token in zip(p, ids[1:])]
        losses["all"] += nll
        losses["answers"] += nll[known - 1 :]
    llama.close()
    return {which: (math.exp(sum(x) / len(x)), len(x)) for which, x in losses.items()}


def ours(model, heldout, which):
    options = ("--passes", "causal", "--ctx", 1024, "--json")
    options += ("--all",) if which == "all" else ()
    got = json.loads(fourleaf.run("eval", model, heldout, *options, timeout=3600))["causal"]
    return got["perplexity"], got["rows"]


def main(a):
    a.work.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in a.heldout.read_text(encoding="utf-8").splitlines()]
    good = True
    print("| file | scored | llama.cpp | ours | apart | tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    for options in ("--type bf16", a.quantize):
        model = a.work / "perplexity.gguf"
        model.unlink(missing_ok=True)
        fourleaf.run("quantize", a.model, model, "--arch", "qwen35moe", *shlex.split(options))
        for which, (p, n) in theirs(model, rows).items():
            q, m = ours(model, a.heldout, which)
            if n != m:
                raise SystemExit(f"{which}: {n} tokens there, {m} here")
            apart = abs(q / p - 1)
            good &= apart <= WANT or which == "all"
            print(f"| {options} | {which} | {p:.5f} | {q:.5f} | {apart:.3%} | {n} |", flush=True)
    print("perplexity: " + ("within bounds" if good else "FAILED"))
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--quantize", default="--type q4_k")
    sys.exit(main(parser.parse_args()))
