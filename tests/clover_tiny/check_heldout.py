"""Proves that no held-out prompt is in the training stream: walks the stream again from its seeds.

    python3 check_heldout.py            # exit status 1 and the prompts when any is found

training_run.json says how many examples of each stream the training consumed. A prompt counts as
found when the same conversation occurs, whatever the system message and thinking mode; the fact
behind a held-out prompt does occur, in another phrasing. Also checked: heldout.jsonl is what
data.py generates, and every key is on its side of the split.
"""

import argparse
import itertools
import json
import os
import sys
import time

import data

HERE = os.path.dirname(os.path.abspath(__file__))


def conversation(messages):
    """What was said, without the system message and the thinking."""
    kept = []
    for message in messages:
        if message["role"] != "system":
            kept.append({k: v for k, v in message.items() if k != "reasoning_content"})
    return json.dumps(kept, sort_keys=True)


def read_records(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def fresh_records(count):
    """The first `count` records that data.py generates, for as many per cell as that takes."""
    cells = sum(
        1 if task in data.THINKING_ONLY else 2 for task in data.TASKS if task not in data.TRAIN_ONLY
    )
    assert count % cells == 0, "heldout.jsonl has not the same number of prompts in every cell"
    return [data.heldout_record(example) for example in data.heldout_examples(count // cells)]


def walk(copy_phase, count, wanted):
    """Held-out conversations among the first `count` examples of a training stream."""
    found = []
    stream = data.training_stream(copy_phase=copy_phase)
    for example in itertools.islice(stream, count):
        assert not data.is_held_out(example.key), f"held-out key in training: {example.key}"
        text = conversation(example.messages)
        if text in wanted:
            found.append(text)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heldout", default=os.path.join(HERE, "heldout.jsonl"))
    parser.add_argument("--run", default=os.path.join(HERE, "training_run.json"))
    args = parser.parse_args()
    start, records = time.time(), read_records(args.heldout)
    with open(args.run, encoding="utf-8") as file:
        consumed = json.load(file)["examples"]
    if records != json.loads(json.dumps(fresh_records(len(records)))):
        sys.exit(f"{args.heldout} is not what data.py generates")
    wanted = {conversation(record["messages"]) for record in records}
    found = walk(True, consumed["copy"], wanted) + walk(False, consumed["main"], wanted)
    for text in found[:10]:
        print("in the training stream:", text)
    print(
        f"{len(records)} held-out prompts, {sum(consumed.values())} training examples, "
        f"{len(found)} found, {time.time() - start:.0f} s"
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
