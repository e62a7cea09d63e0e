"""Right answers and tokens per forward of a model folder on the held-out prompts (reference.py).

    python3 evaluate.py model --per-cell 12            # AR and block mode, every task
    python3 evaluate.py model --verdict verdict.json   # masked NLL of bidir and causal

An answer is right when its text after the last </think>, stripped, equals the expected one. Tokens
per forward are counted twice: over the denoising passes alone, and over these and the commit
forwards together.
"""

import argparse
import collections
import json
import os
import random
import time

import numpy as np
import torch

import reference
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 260
LEVELS = (0.15, 0.5, 0.85, 1.0)
VERDICT_MODES = ("causal", "bidir")


def load_heldout(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def visible(text):
    return text.removesuffix("<|im_end|>").split("</think>")[-1].strip()


def round_to_q4_k(values):
    """Weights as a plain Q4_K quantizer keeps them: 4 bits, 6-bit scale and minimum per 32."""
    blocks = values.reshape(-1, 8, 32)
    low, high = np.minimum(blocks.min(2), 0), blocks.max(2)
    scale, offset = (high - low) / 15, -low
    d, dmin = scale.max(1, keepdims=True) / 63, offset.max(1, keepdims=True) / 63
    d, dmin = d.astype(np.float16).astype(np.float32), dmin.astype(np.float16).astype(np.float32)
    steps = lambda x, unit: np.clip(np.rint(x / np.where(unit > 0, unit, 1)), 0, 63) * unit
    scale, offset = steps(scale, d)[..., None], steps(offset, dmin)[..., None]
    q = np.clip(np.rint((blocks + offset) / np.where(scale > 0, scale, 1)), 0, 15)
    return (q * scale - offset).reshape(values.shape).astype(np.float32)


def quantize(model):
    """Every matrix with rows of a multiple of 256 but the router, in place."""
    for name, tensor in model.tensors.items():
        if tensor.dim() >= 2 and tensor.shape[-1] % 256 == 0 and tensor.numel() > 65536:
            if "mlp.gate.weight" not in name:
                model.tensors[name] = torch.from_numpy(round_to_q4_k(tensor.numpy()))


class Tally:
    def __init__(self):
        self.count = self.ar = self.block = self.tokens = self.passes = self.commits = 0

    def add(self, other):
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def row(self):
        n = max(1, self.count)
        return (
            f"n {self.count:3d}  "
            f"AR {100 * self.ar / n:5.1f} %  block {100 * self.block / n:5.1f} %  "
            f"tokens/pass {self.tokens / max(1, self.passes):5.2f}  "
            f"tokens/(pass+commit) {self.tokens / max(1, self.passes + self.commits):5.2f}"
        )


def run(model, coder, records, modes, threshold, show):
    """Tallies per (task, thinking)."""
    cells = collections.defaultdict(Tally)
    for record in records:
        cell, prompt = cells[record["task"], record["think"]], coder.encode(record["prompt"])
        cell.count += 1
        answers = {}
        if "a" in modes:
            ids, _ = reference.decode_ar(model, prompt, coder.stops, LIMIT)
            answers["AR"] = visible(coder.decode(ids))
            cell.ar += answers["AR"] == record["expected"]
        if "b" in modes:
            ids, passes, commits = reference.decode_block(
                model, prompt, coder.stops, LIMIT, threshold
            )
            answers["block"] = visible(coder.decode(ids))
            cell.block += answers["block"] == record["expected"]
            cell.tokens += len(ids)
            cell.passes += passes
            cell.commits += commits
        for mode, answer in answers.items():
            if show > 0 and answer != record["expected"]:
                show -= 1
                print(
                    f"  {mode} {record['task']} {record['think']}: "
                    f"{answer!r} for {record['expected']!r}"
                )
    return cells


def answer_blocks(model, coder, record):
    """(state before the block, its tokens, rows of the answer) for every block of the answer."""
    size, prompt = model.block_size, coder.encode(record["prompt"])
    ids = prompt + coder.encode(record["completion"])
    end = len(ids)
    ids += [coder.end_text] * (-len(ids) % size)
    state, first = reference.State(model), len(prompt) // size * size
    if first:
        model.clean(ids[:first], state)
    for begin in range(first, end, size):
        block = ids[begin : begin + size]
        yield state, block, range(max(0, len(prompt) - begin), min(size, end - begin))
        model.clean(block, state)


def verdict(model, coder, records, seed=3):
    """Mean NLL of masked answer rows per mask level, with the branch and without it.

    Block mode is earned when the bidirectional branch beats `causal` at every level.
    """
    rng, total = random.Random(seed), collections.defaultdict(float)
    count = collections.Counter()
    for record in records:
        for state, block, answer in answer_blocks(model, coder, record):
            for level in LEVELS:
                rows = [row for row in answer if rng.random() < level]
                count[level] += len(rows)
                tail = range(answer.stop, len(block))  # what follows the answer is masked too
                tokens = [model.mask if r in rows or r in tail else t for r, t in enumerate(block)]
                for mode in VERDICT_MODES if rows else ():
                    log_p = model.logits(model.block(tokens, state, mode)).log_softmax(-1)
                    total[mode, level] -= float(sum(log_p[r, block[r]] for r in rows))
    table = {
        mode: {str(level): round(total[mode, level] / count[level], 4) for level in LEVELS}
        for mode in VERDICT_MODES
    }
    earned = all(table["bidir"][str(level)] < table["causal"][str(level)] for level in LEVELS)
    return {
        "block_mode_earned": earned,
        "gdn_block_mode": "bidir",
        "masked_nll": table,
        "prompts": len(records),
    }


def pick_records(records, per_cell, tasks):
    chosen, counts = [], collections.Counter()
    for record in records:
        cell = record["task"], record["think"]
        if counts[cell] < per_cell and (not tasks or record["task"] in tasks):
            counts[cell] += 1
            chosen.append(record)
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--heldout", default=os.path.join(HERE, "heldout.jsonl"))
    parser.add_argument(
        "--per-cell", type=int, default=12, help="prompts per task and thinking mode"
    )
    parser.add_argument("--tasks", default="", help="comma-separated; all when empty")
    parser.add_argument("--modes", default="ab", help="a: AR, b: block")
    parser.add_argument("--threshold", type=float, default=0.95)
    parser.add_argument("--q4k", action="store_true", help="round the matrices to Q4_K first")
    parser.add_argument("--show", type=int, default=12, help="wrong answers to print")
    parser.add_argument("--verdict", help="measure the masked NLL and write this file")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    model = reference.Reference(args.folder)
    coder = Tokenizer.load(os.path.join(args.folder, "tokenizer.json"))
    records = pick_records(
        load_heldout(args.heldout), args.per_cell, set(filter(None, args.tasks.split(",")))
    )
    if args.q4k:
        quantize(model)
    if args.verdict:
        result = verdict(model, coder, records)
        with open(args.verdict, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
        print(json.dumps(result, indent=1))
        return
    start, total = time.time(), Tally()
    for (task, think), cell in sorted(
        run(model, coder, records, args.modes, args.threshold, args.show).items()
    ):
        print(f"{task:9s} {'think' if think else 'plain'}  {cell.row()}")
        total.add(cell)
    print(f"all              {total.row()}  ({time.time() - start:.0f} s)")


if __name__ == "__main__":
    main()
