"""A second random model, whose rows are multiples of 256: a GGUF of many block types side by side,
and its logits by transformers from the dequantized weights.

usage: make_quantized.py OUTDIR

The blocks are random bits with chosen scales: no quantizer is needed, and every bit pattern of a
block occurs. Compare with float activations (`--act f32`).
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM

import make_blocks
import make_model as mm
import make_tokenizer

SEED = 3507
PROMPTS = (1, 7, 64)
SHAPE = dict(
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    num_experts=3,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
    full_attention_interval=2,
)
# matrix -> type in the GDN layer, type in the attention layer
TYPES = {
    "attn_qkv": ("Q5_K", ""),
    "attn_gate": ("Q8_0", ""),
    "ssm_out": ("Q4_K", ""),
    "ssm_beta": ("F32", ""),
    "ssm_alpha": ("BF16", ""),
    "attn_q": ("", "Q4_K"),
    "attn_k": ("", "Q6_K"),
    "attn_v": ("", "Q5_0"),
    "attn_output": ("", "Q5_1"),
    "ffn_gate_exps": ("Q4_K", "Q3_K"),
    "ffn_up_exps": ("IQ4_XS", "Q2_K"),
    "ffn_down_exps": ("Q6_K", "MXFP4"),
    "ffn_gate_shexp": ("Q4_0", "IQ4_NL"),
    "ffn_up_shexp": ("Q4_1", "NVFP4"),
    "ffn_down_shexp": ("Q8_0", "F16"),
    "token_embd": ("Q6_K", "Q6_K"),
    "output": ("Q6_K", "Q6_K"),
}
# type -> (offset of f16 d, offset of f16 dmin or None, dmin / d that centres the values at zero)
SCALES = {
    "Q8_0": (0, None, 0),
    "Q4_0": (0, None, 0),
    "Q4_1": (0, 2, -7.5),
    "Q5_0": (0, None, 0),
    "Q5_1": (0, 2, -15.5),
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
}


def f16_bytes(x):
    return np.array([x], dtype="<f2").view(np.uint8)


def unit_blocks(kind, n, rng):
    """n random blocks with d = 2^-6 (room above and below in f16), or a like exponent."""
    values, size, _ = make_blocks.TYPES[kind]
    b = rng.randint(0, 256, (n, size)).astype(np.uint8)
    if kind == "MXFP4":
        b[:, 0] = rng.randint(119, 124, n)
    elif kind == "NVFP4":
        b[:, :4] = rng.randint(0x20, 0x30, (n, 4))
    else:
        d, dmin, ratio = SCALES[kind]
        b[:, d : d + 2] = f16_bytes(2.0**-6)
        if dmin is not None:
            b[:, dmin : dmin + 2] = f16_bytes(ratio * 2.0**-6)
    return b


def quantized(kind, shape, gain, rng):
    """(blocks [rows, bytes], floats of `shape`) with a standard deviation near gain / sqrt(K)."""
    qtype = gguf.GGMLQuantizationType[kind]
    values = make_blocks.TYPES[kind][0]
    b = unit_blocks(kind, int(np.prod(shape)) // values, rng)
    factor = gain / np.sqrt(shape[-1]) / gguf.quants.dequantize(b, qtype).std()
    if kind in SCALES:
        for at in SCALES[kind][:2]:
            if at is not None:
                f = np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float64)
                b[:, at : at + 2] = (f * factor).astype("<f2").view(np.uint8).reshape(-1, 2)
    elif kind == "MXFP4":
        b[:, 0] = np.clip(b[:, 0].astype(int) + round(np.log2(factor)), 2, 200)
    else:
        b[:, :4] = np.clip(b[:, :4].astype(int) + 8 * round(np.log2(factor)), 1, 0x7E)
    rows = b.reshape(shape[:-1] + (-1,))
    return rows, gguf.quants.dequantize(rows, qtype).reshape(shape)


def make_tensors(template, rng):
    """{GGUF name: (type, data, floats)} in the places of `template` ({GGUF name: float array})."""
    out = {}
    for name, x in template.items():
        part = name.split(".")[-2 if name.endswith((".weight", ".bias")) else -1]
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        kind = TYPES.get(part, ("F32", "F32"))[layer]
        if kind in ("F32", "F16", "BF16"):
            qtype = gguf.GGMLQuantizationType[kind]
            data = gguf.quants.quantize(np.ascontiguousarray(x), qtype)
            out[name] = (kind, data, gguf.quants.dequantize(data, qtype).reshape(x.shape))
        else:
            gain = {"token_embd": 16, "output": 2, "attn_qkv": 3}.get(part, 1.5)
            out[name] = (kind, *quantized(kind, x.shape, gain, rng))
    return out


def back_to_hf(floats, model):
    """Load GGUF-order floats into the transformers model: the inverse of make_model.gguf_layer."""
    hd, kd = SHAPE["linear_value_head_dim"], 2 * 2 * SHAPE["linear_key_head_dim"]

    def v(
        x, dim, unit
    ):  # tiled to grouped: four heads of two groups, so the swap is its own inverse
        return mm.v_heads(x, dim, unit)

    def tail(x):
        return np.concatenate([x[:kd], v(x[kd:], 0, hd)])

    def layer(i):
        g = lambda n: floats[f"blk.{i}.{n}"]
        out = {
            "input_layernorm.weight": g("attn_norm.weight") - 1,
            "post_attention_layernorm.weight": g("post_attention_norm.weight") - 1,
            "mlp.gate.weight": g("ffn_gate_inp.weight"),
            "mlp.experts.gate_up_proj": np.concatenate(
                [g("ffn_gate_exps.weight"), g("ffn_up_exps.weight")], axis=1
            ),
            "mlp.experts.down_proj": g("ffn_down_exps.weight"),
            "mlp.shared_expert_gate.weight": g("ffn_gate_inp_shexp.weight")[None],
        }
        for n in ("gate", "up", "down"):
            out[f"mlp.shared_expert.{n}_proj.weight"] = g(f"ffn_{n}_shexp.weight")
        if i == 0:
            out |= {
                "linear_attn.in_proj_qkv.weight": tail(g("attn_qkv.weight")),
                "linear_attn.in_proj_z.weight": v(g("attn_gate.weight"), 0, hd),
                "linear_attn.in_proj_a.weight": v(g("ssm_alpha.weight"), 0, 1),
                "linear_attn.in_proj_b.weight": v(g("ssm_beta.weight"), 0, 1),
                "linear_attn.conv1d.weight": tail(g("ssm_conv1d.weight"))[:, None],
                "linear_attn.dt_bias": v(g("ssm_dt.bias"), 0, 1),
                "linear_attn.A_log": np.log(-v(g("ssm_a"), 0, 1)),
                "linear_attn.norm.weight": g("ssm_norm.weight"),
                "linear_attn.out_proj.weight": v(g("ssm_out.weight"), 1, hd),
            }
        else:
            out |= {f"self_attn.{n}_proj.weight": g(f"attn_{n}.weight") for n in "qkv"}
            out |= {f"self_attn.{n}_norm.weight": g(f"attn_{n}_norm.weight") - 1 for n in "qk"}
            out["self_attn.o_proj.weight"] = g("attn_output.weight")
        return {f"model.layers.{i}.{n}": x for n, x in out.items()}

    state = {
        "model.embed_tokens.weight": floats["token_embd.weight"],
        "lm_head.weight": floats["output.weight"],
        "model.norm.weight": floats["output_norm.weight"] - 1,
    }
    for i in range(SHAPE["num_hidden_layers"]):
        state |= layer(i)
    arrays = {n: torch.from_numpy(np.ascontiguousarray(x, np.float32)) for n, x in state.items()}
    model.load_state_dict(arrays, strict=True)


def main(out):
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    mm.SHAPE.update(SHAPE)
    mm.ROPE["mrope_section"] = [3, 3, 2]
    tokens = make_tokenizer.load_ranks()[: mm.N_BASE]
    tok = make_tokenizer.build(tokens, make_tokenizer.derive_merges(tokens))
    rng = np.random.RandomState(SEED)
    config = mm.text_config()
    config._attn_implementation = config._experts_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(mm.draw(name, tuple(p.shape), rng))
    made = make_tensors(mm.gguf_tensors(mm.official_tensors(model)), rng)
    back_to_hf({n: x for n, (_, _, x) in made.items()}, model)
    w = gguf.GGUFWriter(str(out / "tiny-quantized.gguf"), "qwen35moe")
    mm.add_metadata(w, tok, False)
    for name, (kind, data, _) in made.items():
        w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for n in PROMPTS:
        ids = rng.randint(0, mm.N_BASE, (1, n))
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)).logits[0].numpy()
            wide = model.double()(torch.from_numpy(ids)).logits[0].numpy()
            model.float()
        mm.report(n, logits, wide)
        np.save(out / f"quantized_ids_{n}.npy", ids[0].astype("<i4"))
        np.save(out / f"quantized_logits_{n}.npy", logits.astype("<f4"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
