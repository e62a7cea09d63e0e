"""Calibration text for clover-tiny: training examples from a seed of their own.

usage: calibration.py OUT --seed N [--characters N]

Writes OUT.txt (what llama.cpp's tools read) and OUT.jsonl (the same text, a turn a line, what
fourleaf reads). No held-out prompt is among them: they come from the training side of the split.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clover_tiny"))
import data  # noqa: E402


def write(out, seed, characters):
    text, lines, length = [], [], 0
    for example in data.training_stream(seed):
        prompt, completion = example.prompt(), example.completion()
        text.append(prompt + completion)
        lines.append(json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False))
        length += len(text[-1])
        if length >= characters:
            break
    Path(f"{out}.txt").write_text("".join(text), encoding="utf-8")
    Path(f"{out}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--characters", type=int, default=250_000)
    a = parser.parse_args()
    write(a.out, a.seed, a.characters)
