"""A copy of a safetensors model that computes the same but has outlier channels.

usage: rescale.py MODEL OUT [--sigma S] [--seed N]

Every norm channel is multiplied by its own s and the columns behind it are divided by it; every
row of an expert's up matrix is multiplied and the column of its down matrix divided. s is
log-normal, exp(S x normal). All tensors that change become F32. With F32 arithmetic the logits are
equal within rounding (compare_quant.py checks that).
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clover_tiny"))
import safetensors  # noqa: E402

ATTN = ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"]
ATTN += [f"linear_attn.in_proj_{p}.weight" for p in ("qkv", "z", "a", "b")]
ATTN += [f"linear_attn.bwd.in_proj_{p}.weight" for p in ("a", "b")]
FFN = ["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.shared_expert_gate.weight"]
FFN += ["mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"]


class Rescaler:
    def __init__(self, tensors, sigma, seed):
        self.t, self.sigma, self.rng = tensors, sigma, np.random.default_rng(seed)
        self.changed = set()

    def factors(self, *shape):
        return np.exp(self.sigma * self.rng.standard_normal(shape)).astype(np.float32)

    def multiply(self, name, s):
        self.t[name] = (self.t[name].astype(np.float64) * s).astype(np.float32)
        self.changed.add(name)

    def norm(self, name, columns, zero_centred=True):
        """columns: the matrices that read what this norm writes."""
        w = self.t[name].astype(np.float64)
        s = self.factors(len(w))
        self.t[name] = ((w + 1) * s - 1 if zero_centred else w * s).astype(np.float32)
        self.changed.add(name)
        for matrix in columns:
            if matrix in self.t:
                self.multiply(matrix, 1.0 / np.tile(s, self.t[matrix].shape[-1] // len(s)))

    def hidden(self, up, down, first_row):
        """Rows of `up` from first_row on against columns of `down`, per expert."""
        s = self.factors(*self.t[down].shape[:-2], self.t[down].shape[-1])
        rows = np.ones(self.t[up].shape[:-1], np.float32)
        rows[..., first_row:] = s
        self.multiply(up, rows[..., None])
        self.multiply(down, 1.0 / s[..., None, :])

    def model(self):
        root = "model.language_model."
        layers = {n.split(".")[3] for n in self.t if n.startswith(root + "layers.")}
        for layer in sorted(layers, key=int):
            p = f"{root}layers.{layer}."
            self.norm(p + "input_layernorm.weight", [p + m for m in ATTN])
            self.norm(p + "post_attention_layernorm.weight", [p + m for m in FFN])
            if p + "linear_attn.norm.weight" in self.t:
                self.norm(p + "linear_attn.norm.weight", [p + "linear_attn.out_proj.weight"], False)
            width = self.t[p + "mlp.experts.down_proj"].shape[-1]
            self.hidden(p + "mlp.experts.gate_up_proj", p + "mlp.experts.down_proj", width)
            shared = p + "mlp.shared_expert."
            self.hidden(shared + "up_proj.weight", shared + "down_proj.weight", 0)
        self.norm(root + "norm.weight", ["lm_head.weight"])


def rescale(model, out, sigma, seed):
    model, out = Path(model), Path(out)
    tensors, metadata = safetensors.read(model / "model.safetensors")
    r = Rescaler(dict(tensors), sigma, seed)
    r.model()
    out.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
    kinds = {n: "F32" if n in r.changed else "BF16" for n in r.t}
    kinds |= {n: "F32" for n in r.t if n.endswith(("A_log", "linear_attn.norm.weight"))}
    safetensors.write(
        out / "model.safetensors", {n: (v, kinds[n]) for n, v in r.t.items()}, metadata
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    rescale(a.model, a.out, a.sigma, a.seed)
