"""Writes golden logits of reference.py for the tests of the C forward pass.

    python3 make_goldens.py random   # a random model of another geometry, saved beside its goldens
    python3 make_goldens.py model    # the committed clover-tiny weights; run after every export

golden/<set>/index.json lists the cases. A case is a clean prefix, then either the clean logits of
`tokens` (mode "clean") or one block pass over them; `logits` names a .npy file, float32
[rows][vocab], one row for each number in `rows`. `margin` is the smallest gap between the last
chosen and the first unchosen router logit: far above rounding, so a correct program picks the same.
"""

import json
import math
import os
import sys

import numpy as np
import torch

import reference
import safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIXES = (0, 32, 45)
RANDOM_CONFIG = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "attention_bias": False,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
    "block_size": 32,
    "mask_token_id": 255,
    "confidence_threshold": 0.95,
    "expert_pool_size": 0,
    "eos_token_id": 254,
    "model_type": "clover_moe_text",
    "dtype": "bfloat16",
}


def random_layer(c, kind, normal, uniform):
    """Tensors of one layer, shaped by the config."""
    hidden, width, experts = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads = c["linear_num_value_heads"]
    value = heads * c["linear_value_head_dim"]
    out = {
        "input_layernorm.weight": normal(hidden, std=0.1),
        "post_attention_layernorm.weight": normal(hidden, std=0.1),
        "mlp.gate.weight": normal(experts, hidden, std=4 / math.sqrt(hidden)),
        "mlp.experts.gate_up_proj": normal(experts, 2 * width, hidden),
        "mlp.experts.down_proj": normal(experts, hidden, width),
        "mlp.shared_expert.gate_proj.weight": normal(width, hidden),
        "mlp.shared_expert.up_proj.weight": normal(width, hidden),
        "mlp.shared_expert.down_proj.weight": normal(hidden, width),
        "mlp.shared_expert_gate.weight": normal(1, hidden),
    }
    if kind == "full_attention":
        q, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        out.update(
            {
                "self_attn.q_proj.weight": normal(2 * q * dim, hidden),
                "self_attn.k_proj.weight": normal(kv * dim, hidden),
                "self_attn.v_proj.weight": normal(kv * dim, hidden),
                "self_attn.o_proj.weight": normal(hidden, q * dim),
                "self_attn.q_norm.weight": normal(dim, std=0.1),
                "self_attn.k_norm.weight": normal(dim, std=0.1),
            }
        )
        return out
    out.update(
        {
            "linear_attn.in_proj_qkv.weight": normal(2 * key + value, hidden),
            "linear_attn.in_proj_z.weight": normal(value, hidden),
            "linear_attn.norm.weight": 1 + normal(c["linear_value_head_dim"], std=0.1),
            "linear_attn.out_proj.weight": normal(hidden, value),
            "linear_attn.bwd.mix": uniform(heads, low=-1, high=1),
        }
    )
    for branch in ("", "bwd."):
        out.update(
            {
                f"linear_attn.{branch}in_proj_a.weight": normal(heads, hidden),
                f"linear_attn.{branch}in_proj_b.weight": normal(heads, hidden),
                f"linear_attn.{branch}conv1d.weight": uniform(
                    2 * key + value, 1, 4, low=-1, high=1
                ),
                f"linear_attn.{branch}A_log": np.log(uniform(heads, low=0.5, high=4)),
                f"linear_attn.{branch}dt_bias": uniform(heads, low=-4, high=-1),
            }
        )
    return out


def write_random_model(folder, seed=5):
    """Experts in BF16, the rest in F32, so that a reader meets both."""
    rng = np.random.RandomState(seed)
    c = RANDOM_CONFIG

    def normal(*shape, std=None):
        std = 1 / math.sqrt(shape[-1]) if std is None else std
        return (rng.standard_normal(shape) * std).astype(np.float32)

    def uniform(*shape, low, high):
        return rng.uniform(low, high, shape).astype(np.float32)

    tensors = {
        "model.language_model.embed_tokens.weight": normal(
            c["vocab_size"], c["hidden_size"], std=1.0
        ),
        "model.language_model.norm.weight": normal(c["hidden_size"], std=0.1),
        "lm_head.weight": normal(c["vocab_size"], c["hidden_size"], std=0.3),
    }
    for i, kind in enumerate(c["layer_types"]):
        for name, values in random_layer(c, kind, normal, uniform).items():
            tensors[f"model.language_model.layers.{i}.{name}"] = values
    dtypes = {name: "BF16" if "mlp.experts" in name else "F32" for name in tensors}
    os.makedirs(folder, exist_ok=True)
    safetensors.write(
        os.path.join(folder, "model.safetensors"),
        {name: (values, dtypes[name]) for name, values in tensors.items()},
        {"format": "pt"},
    )
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(
            {
                "architectures": ["CloverMoeForCausalLM"],
                "model_type": "clover_moe",
                "tie_word_embeddings": False,
                "text_config": c,
            },
            file,
            indent=1,
        )


class Watched(reference.Reference):
    """Keeps the smallest router margin since the last reset."""

    margin = float("inf")

    def observe(self, layer, logits, chosen):
        ordered = logits.sort(1, descending=True).values
        k = self.config["num_experts_per_tok"]
        self.margin = min(self.margin, float((ordered[:, k - 1] - ordered[:, k]).min()))


def text_rows(model, folder, count, rng):
    """Token rows for the cases: text for a trained model, random ids for a random one."""
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        return rng.randint(0, model.mask - 1, count).tolist()
    import data
    import tokenizer

    coder = tokenizer.Tokenizer.load(os.path.join(folder, "tokenizer.json"))
    ids = []
    for example in data.heldout_examples(1):
        ids += coder.encode(example.prompt() + example.completion())
        if len(ids) >= count:
            return ids[:count]
    raise ValueError("not enough text")


def masked_block(rows, mask):
    """Rows 7..19 and every third row from 22 on masked: clean rows first, a run, islands."""
    return [mask if 7 <= i < 20 or (i >= 22 and i % 3 == 0) else t for i, t in enumerate(rows)]


def cases(model, ids):
    size = model.block_size
    for prefix in PREFIXES:
        block = ids[prefix : prefix + size]
        yield f"clean_{prefix}", prefix, block, "clean"
        for mode in reference.BLOCK_MODES:
            yield f"{mode}_{prefix}", prefix, masked_block(block, model.mask), mode
    yield "bidir_all_masked_45", 45, [model.mask] * size, "bidir"
    yield "bidir_5_rows_45", 45, ids[45:48] + [model.mask] * 2, "bidir"


def write_goldens(folder, out, rows_kept):
    """rows_kept: rows of each case whose logits are stored (all when None), to bound the files."""
    model = Watched(folder)
    ids = text_rows(model, folder, 96, np.random.RandomState(9))
    index = []
    for name, prefix, tokens, mode in cases(model, ids):
        model.margin = float("inf")
        state = reference.State(model)
        if prefix:
            model.clean(ids[:prefix], state)
        x = (
            model.clean(tokens, state, write=False)
            if mode == "clean"
            else model.block(tokens, state, mode)
        )
        kept = [r for r in range(len(tokens)) if rows_kept is None or r in rows_kept]
        np.save(os.path.join(out, name + ".npy"), model.logits(x)[kept].numpy().astype(np.float32))
        index.append(
            {
                "name": name,
                "mode": mode,
                "prefix": ids[:prefix],
                "tokens": tokens,
                "rows": kept,
                "logits": name + ".npy",
                "margin": round(model.margin, 6),
            }
        )
    with open(os.path.join(out, "index.json"), "w", encoding="utf-8") as file:
        json.dump({"mask_token_id": model.mask, "cases": index}, file, indent=1)
    print(out, len(index), "cases, smallest margin", min(case["margin"] for case in index))


def main():
    torch.set_grad_enabled(False)
    which = sys.argv[1]
    out = os.path.join(HERE, "golden", which)
    os.makedirs(out, exist_ok=True)
    if which == "random":
        folder = os.path.join(out, "model")
        write_random_model(folder)
        write_goldens(folder, out, None)
    else:
        write_goldens(os.path.join(HERE, "model"), out, {0, 19, 31})


if __name__ == "__main__":
    main()
