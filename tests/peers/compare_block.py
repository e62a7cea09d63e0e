"""Our block passes against the PyTorch reference of the architecture.

usage: compare_block.py CLOVER_TINY_DIR WORKDIR

Logits of `fourleaf logits --denoise` in every block mode, on the random golden model and (when it
is there) on clover-tiny; from the safetensors folder and from a GGUF that `quantize` made of it.
The reference itself is compared with transformers first: its causal path on the golden tiny model.
Bound: the largest difference at most 1e-4 of the largest logit. A pass in which two experts compete
within 1e-5 is not counted: rounding may choose either.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import fourleaf

ROOT = Path(__file__).resolve().parent.parent
MODES = ("causal", "blockend", "mixed", "bidir")
BOUND, MARGIN = 1e-4, 1e-5
EXACT = ("--act", "f32", "--kv", "f32")


def load_reference(folder):
    """The reference module has a `safetensors` of its own, so its folder must come first."""
    sys.path.insert(0, str(folder))
    import reference

    class Watched(reference.Reference):
        """Keeps the smallest distance between the last chosen and the first unchosen expert."""

        margin = float("inf")

        def observe(self, layer, logits, chosen):
            k, best = self.config["num_experts_per_tok"], logits.sort(1, descending=True).values
            self.margin = min(self.margin, float((best[:, k - 1] - best[:, k]).min()))

    return reference, Watched


def check_reference(reference, golden):
    """The reference's causal path on transformers' golden logits."""
    with tempfile.TemporaryDirectory() as d:
        config = json.loads((golden / "hf" / "config.json").read_text())
        config["text_config"] |= {"mask_token_id": 335, "block_size": 32}
        Path(d, "config.json").write_text(json.dumps(config))
        shutil.copy(golden / "hf" / "model.safetensors", d)
        model, worst = reference.Reference(d), 0.0
        for n in (1, 7, 64, 300):
            ids, want = np.load(golden / f"ids_{n}.npy"), np.load(golden / f"logits_{n}.npy")
            got = model.logits(model.clean(ids.tolist(), reference.State(model))).numpy()
            worst = max(worst, np.abs(got - want).max() / np.abs(want).max())
    print(f"reference against transformers: {worst:.1e}")
    return worst <= BOUND


def cases(model, longest, rng):
    """(clean ids before the block, rows of the block with masks)."""
    for start in (0, 32, 96, longest // 32 * 32 - 32):
        for rows, ratio in ((32, 1.0), (32, 0.5), (32, 0.1), (19, 0.7), (1, 1.0)):
            ids = rng.randint(0, min(model.mask, model.config["vocab_size"] - 1), start + rows)
            masked = rng.random_sample(rows) < ratio
            masked[rng.randint(rows)] = True
            block = [model.mask if m else int(t) for m, t in zip(masked, ids[start:])]
            yield ids[:start].tolist(), block


def ours(path, clean, block, mask, mode):
    """fourleaf's logits of the block's rows."""
    places = ",".join(str(len(clean) + i) for i, t in enumerate(block) if t == mask)
    ids = clean + [0 if t == mask else t for t in block]
    return fourleaf.logits(path, ids, "--denoise", places, "--block-mode", mode, *EXACT)


def compare(reference, Watched, folder, paths, longest):
    """True when every pass is within the bound."""
    model, rng, worst, n, near = Watched(str(folder)), np.random.RandomState(7), 0.0, 0, 0
    for clean, block in cases(model, longest, rng):
        for mode in MODES:
            model.margin, state = float("inf"), reference.State(model)
            if clean:
                model.clean(clean, state)
            want = model.logits(model.block(block, state, mode)).numpy()
            if model.margin < MARGIN:
                near += 1
                continue
            for path in paths:
                got = ours(path, clean, block, model.mask, mode)
                error = np.abs(got - want).max() / np.abs(want).max()
                if not error <= BOUND:
                    print(f"  {path.name} {mode} {len(clean)} + {len(block)}: error {error:.1e}")
                worst, n = max(worst, error), n + 1
    print(f"block passes, {folder}: largest error {worst:.1e} in {n} passes, {near} near ties")
    return worst <= BOUND and n > 0


def main(tiny, work):
    torch.set_grad_enabled(False)
    work.mkdir(parents=True, exist_ok=True)
    reference, Watched = load_reference(tiny)
    good = check_reference(reference, ROOT / "golden" / "model")
    for name, folder, longest in (
        ("random", tiny / "golden/random/model", 250),
        ("clover-tiny", tiny / "model", 1000),
    ):
        if not (folder / "model.safetensors").exists():
            print(f"block passes: {folder} is not there")
            good = False
            continue
        paths = [folder]
        if (folder / "tokenizer.json").exists():  # quantize wants one to write
            paths.append(work / f"{name}-f32.gguf")
            paths[1].unlink(missing_ok=True)
            fourleaf.run("quantize", folder, paths[1], "--type", "f32")
        good = compare(reference, Watched, folder, paths, longest) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
