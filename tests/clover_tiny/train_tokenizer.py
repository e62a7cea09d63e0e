"""Trains the byte-pair vocabulary on the training stream.

Names have extra weight, so that a name is one or two tokens.

    python3 train_tokenizer.py model/tokenizer.json
"""

import collections
import itertools
import sys

import data
import tokenizer
import world

EXAMPLES = 6000
NAME_WEIGHT = 60


def name_pieces():
    """Pieces that should be few tokens; those of tools and commands with and without a space."""
    names = (
        [part for entry in world.CAPITALS for part in entry]
        + [name for name, _ in world.ELEMENTS]
        + [name for _, name in world.FACTS]
    )
    for name in names + world.CITIES + world.NAMES:
        yield from tokenizer.pieces_of(" " + name)
    for name in world.CITIES + world.NAMES + world.DEVICES + world.GOODS + world.SKIES:
        yield from tokenizer.pieces_of(name)


def main():
    counts = collections.Counter()
    for example in itertools.islice(data.training_stream(), EXAMPLES):
        for text, _ in example.segments():
            counts.update(tokenizer.pieces_of(text))
    for piece in name_pieces():
        counts[piece] += NAME_WEIGHT
    # A code stays a row of single letters: its random pairs would waste the vocabulary.
    for piece in list(counts):
        if len(piece.strip()) > 1 and piece.strip().isupper():
            del counts[piece]
    merges = tokenizer.train_merges(counts, tokenizer.VOCAB_SIZE - 256 - len(tokenizer.ADDED))
    trained = tokenizer.Tokenizer(merges)
    trained.save(sys.argv[1])
    lengths = [len(trained.encode(" " + name)) for entry in world.CAPITALS for name in entry[:2]]
    print("tokens", trained.size, "per name", sum(lengths) / len(lengths), "longest", max(lengths))


if __name__ == "__main__":
    main()
