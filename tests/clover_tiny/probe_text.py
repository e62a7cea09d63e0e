"""Writes the text on which `fourleaf probe` measures clover-tiny: held-out conversations of its own
data, about 550 tokens.

    python3 probe_text.py > ../../runtime/tools/probe_text_tiny.c
"""

import data

SEED = 4242
WANTED = (("list", True), ("explain", True), ("math2", True), ("math2", True))
WANTED += (("dispatch", False), ("capital", True), ("code", False))


def c_string(text):
    """A C literal, cut behind line ends and at 80 bytes or so."""
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    pieces, line = [], ""
    for c in text:
        line += escaped.get(c, c)
        if c == "\n" or (len(line) > 80 and c == " "):
            pieces.append(line)
            line = ""
    return "\n     ".join(f'"{piece}"' for piece in pieces + [line] if piece)


def main():
    examples = {}
    for example in data.heldout_examples(2, SEED):
        examples.setdefault((example.task, example.thinking), []).append(example)
    print('/* Written by tests/clover_tiny/probe_text.py. */\n#include "runtime/tools/probe_text.h"')
    print("\nconst fl_probe_doc fl_probe_tiny[] = {")
    for cell in WANTED:
        example = examples[cell].pop()
        prompt, answer = c_string(example.prompt()), c_string(example.completion())
        print(f"    {{{prompt},\n     {answer}}},")
    print("    {NULL, NULL},\n};")


if __name__ == "__main__":
    main()
