"""A synthetic checkpoint with Clover-35B-A3B's layer shapes, to measure rate and memory with.

usage: big_checkpoint.py OUT [--layers N] [--shards N] [--experts N]

A Hugging Face folder: BF16 safetensors with an index, config.json, the tokenizer of clover-tiny
(its vocabulary of 2,048, so layers are nearly all of the bytes). A layer is 1.65 GB at 256 experts
of 2048 x 512. The values are heavy-tailed noise (Student's t, 4 degrees, of spread 0.02), cut from
one pool at places that differ from tensor to tensor, with a sign for each piece. The model computes
finite numbers and says nothing.
"""

import argparse
import json
import shutil
import struct
from pathlib import Path

import numpy as np

TINY = Path(__file__).resolve().parent.parent / "clover_tiny" / "model"
HIDDEN, WIDTH, VOCAB = 2048, 512, 2048
KEY_HEADS, VALUE_HEADS, GDN_DIM, HEADS, KV_HEADS, HEAD_DIM = 16, 32, 128, 16, 2, 256
POOL, PIECE = 1 << 25, 1 << 22


def layer_tensors(layer, full, experts):
    """{name: shape} of one layer."""
    keys, values = KEY_HEADS * GDN_DIM, VALUE_HEADS * GDN_DIM
    p, t = f"model.language_model.layers.{layer}.", {}
    t["input_layernorm.weight"] = t["post_attention_layernorm.weight"] = (HIDDEN,)
    if full:
        t["self_attn.q_proj.weight"] = (2 * HEADS * HEAD_DIM, HIDDEN)
        t["self_attn.k_proj.weight"] = t["self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        t["self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        t["self_attn.q_norm.weight"] = t["self_attn.k_norm.weight"] = (HEAD_DIM,)
    else:
        t["linear_attn.in_proj_qkv.weight"] = (2 * keys + values, HIDDEN)
        t["linear_attn.in_proj_z.weight"] = (values, HIDDEN)
        t["linear_attn.norm.weight"] = (GDN_DIM,)
        t["linear_attn.out_proj.weight"] = (HIDDEN, values)
        for branch in ("linear_attn.", "linear_attn.bwd."):
            t[branch + "in_proj_a.weight"] = t[branch + "in_proj_b.weight"] = (VALUE_HEADS, HIDDEN)
            t[branch + "conv1d.weight"] = (2 * keys + values, 1, 4)
            t[branch + "A_log"] = t[branch + "dt_bias"] = (VALUE_HEADS,)
        t["linear_attn.bwd.mix"] = (VALUE_HEADS,)
    t["mlp.gate.weight"] = (experts, HIDDEN)
    t["mlp.experts.gate_up_proj"] = (experts, 2 * WIDTH, HIDDEN)
    t["mlp.experts.down_proj"] = (experts, HIDDEN, WIDTH)
    t["mlp.shared_expert.gate_proj.weight"] = t["mlp.shared_expert.up_proj.weight"] = (
        WIDTH,
        HIDDEN,
    )
    t["mlp.shared_expert.down_proj.weight"] = (HIDDEN, WIDTH)
    t["mlp.shared_expert_gate.weight"] = (1, HIDDEN)
    return {p + name: shape for name, shape in t.items()}


def config(layers, experts):
    c = json.loads((TINY / "config.json").read_text())
    interval = min(4, layers)
    c["text_config"] |= {
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "full_attention_interval": interval,
        "layer_types": [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(layers)
        ],
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "num_experts": experts,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": WIDTH,
    }
    return c


class Noise:
    def __init__(self):
        rng = np.random.default_rng(4)
        self.pool = np.empty(POOL, np.uint16)
        for at in range(0, POOL, PIECE):
            spread = np.sqrt(4.0 / rng.chisquare(4, PIECE).astype(np.float32))
            x = rng.standard_normal(PIECE, np.float32) * spread * np.float32(0.02)
            self.pool[at : at + PIECE] = np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16
        self.rng = rng

    def pieces(self, n):
        """n BF16 values in pieces."""
        while n > 0:
            take = min(n, PIECE)
            at = int(self.rng.integers(0, POOL - take + 1))
            sign = np.uint16(0x8000 * int(self.rng.integers(2)))
            yield self.pool[at : at + take] ^ sign
            n -= take


def write_shard(path, tensors, noise):
    """Returns the bytes of the tensors."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in tensors.values():
            for piece in noise.pieces(int(np.prod(shape, dtype=np.int64))):
                file.write(piece)
    return at


def main(out, layers, shards, experts):
    out.mkdir(parents=True)
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    ):
        shutil.copy(TINY / name, out / name)
    (out / "config.json").write_text(json.dumps(config(layers, experts), indent=1))
    root, interval = "model.language_model.", min(4, layers)
    parts = [{} for _ in range(shards)]
    parts[0][root + "embed_tokens.weight"] = (VOCAB, HIDDEN)
    for i in range(layers):
        parts[i * shards // layers] |= layer_tensors(i, (i + 1) % interval == 0, experts)
    parts[-1] |= {root + "norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    noise, total, where = Noise(), 0, {}
    for i, tensors in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        total += write_shard(out / name, tensors, noise)
        where |= {tensor: name for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    print(f"{out}: {total / 1e9:.2f} GB in {shards} shards, {total // 2} weights")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256)
    a = parser.parse_args()
    main(a.out, a.layers, a.shards, a.experts)
