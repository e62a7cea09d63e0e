"""Records which experts a model chooses while it answers held-out prompts, by AR and by blocks.

    python3 traces.py MODEL_FOLDER traces/128e --prompts 60

forwards.npy  int32 [forwards][4]: prompt, kind, first row, rows.  kind: 0 prompt, 1 AR step,
              2 block pass, 3 commit of a finished block
experts.npy   uint8 [rows][layers][top k]: the chosen experts by falling router logit
index.json    geometry, and each prompt's task, thinking mode and decoding mode
"""

import argparse
import json
import os

import numpy as np
import torch

import reference
from evaluate import LIMIT, load_heldout, pick_records
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT, AR_STEP, BLOCK_PASS, COMMIT = range(4)


class Traced(reference.Reference):
    """Keeps the expert choices of every forward."""

    def __init__(self, folder):
        super().__init__(folder)
        self.forwards, self.rows, self.total, self.prompt, self.fresh = [], [], 0, 0, True

    def begin(self, prompt):
        self.prompt, self.fresh = prompt, True

    def observe(self, layer, logits, chosen):
        self.layers.append(chosen.numpy().astype(np.uint8))

    def forward(self, tokens, state, write, mode, leading_clean):
        self.layers = []
        x = super().forward(tokens, state, write, mode, leading_clean)
        if mode != "clean":
            kind = BLOCK_PASS
        elif self.fresh:
            kind = PROMPT
        else:
            kind = AR_STEP if len(tokens) == 1 else COMMIT
        self.fresh = False
        self.forwards.append((self.prompt, kind, self.total, len(tokens)))
        self.rows.append(np.stack(self.layers, 1))
        self.total += len(tokens)
        return x


def record(model, coder, records):
    """Runs every prompt in both modes; returns the list of what was run."""
    runs = []
    for item in records:
        prompt = coder.encode(item["prompt"])
        for mode in ("ar", "block"):
            model.begin(len(runs))
            if mode == "ar":
                reference.decode_ar(model, prompt, coder.stops, LIMIT)
            else:
                reference.decode_block(model, prompt, coder.stops, LIMIT)
            runs.append({"task": item["task"], "think": item["think"], "mode": mode})
    return runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--prompts", type=int, default=60)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    model = Traced(args.folder)
    coder = Tokenizer.load(os.path.join(args.folder, "tokenizer.json"))
    records = pick_records(load_heldout(os.path.join(HERE, "heldout.jsonl")), 3, set())
    runs = record(model, coder, records[: args.prompts])
    os.makedirs(args.out, exist_ok=True)
    np.save(os.path.join(args.out, "forwards.npy"), np.array(model.forwards, np.int32))
    np.save(os.path.join(args.out, "experts.npy"), np.concatenate(model.rows))
    c = model.config
    index = {
        "layers": c["num_hidden_layers"],
        "experts": c["num_experts"],
        "top_k": c["num_experts_per_tok"],
        "kinds": ["prompt", "AR step", "block pass", "commit"],
        "runs": runs,
    }
    with open(os.path.join(args.out, "index.json"), "w", encoding="utf-8") as file:
        json.dump(index, file, indent=0)
    print(len(runs), "runs,", len(model.forwards), "forwards,", model.total, "rows")


if __name__ == "__main__":
    main()
