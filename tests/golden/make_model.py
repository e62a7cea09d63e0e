"""A random tiny model of the real architecture, its logits by transformers, and GGUF files of it by
llama.cpp's converter rules.

usage: make_model.py OUTDIR

Writes OUTDIR/hf (BF16 safetensors, the official names), OUTDIR/*.gguf (one model in four packings)
and the logits.
Every weight is rounded so that F32, BF16 and F16 hold it exactly: all packings must give the same
logits.
"""

import json
import os
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeRMSNorm,
)

import make_tokenizer

SEED = 3506
PROMPTS = (1, 7, 64, 300)
# vocabulary: 256 bytes, the first 40 merges of the real vocabulary, 33 added tokens, 7 pads
N_BASE = 296
VOCAB = 336
SHAPE = dict(
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=32,
    vocab_size=VOCAB,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
)
ROPE = dict(
    rope_type="default",
    rope_theta=10000000,
    partial_rotary_factor=0.25,
    mrope_section=[2, 1, 1],
    mrope_interleaved=True,
)


def text_config():
    kinds = [
        (
            "full_attention"
            if (i + 1) % SHAPE.get("full_attention_interval", 4) == 0
            else "linear_attention"
        )
        for i in range(SHAPE["num_hidden_layers"])
    ]
    return Qwen3_5MoeTextConfig(
        **SHAPE,
        layer_types=kinds,
        rope_parameters=ROPE,
        partial_rotary_factor=0.25,
        pad_token_id=None,
    )


def rounded(x):
    """Nearest BF16 that F16 holds exactly too (magnitudes below 2^-14 become 0)."""
    x = torch.from_numpy(np.asarray(x, dtype=np.float32)).bfloat16().float()
    return torch.where(x.abs() < 2.0**-14, torch.zeros_like(x), x)


def draw(name, shape, rng):
    """Weights that make every path matter: norms away from their default, wide decay rates,
    l2-normalised sums above 1.
    """
    x = rng.standard_normal(shape)
    if name.endswith("A_log"):
        return torch.from_numpy(rng.uniform(np.log(0.05), np.log(8), shape).astype(np.float32))
    if name.endswith("dt_bias"):
        return rounded(rng.uniform(-4, 0.5, shape))
    if name.endswith("linear_attn.norm.weight"):
        return rounded(1 + 0.2 * x)
    if name.endswith("q_norm.weight"):
        return rounded(0.5 + 0.3 * x)
    if "norm" in name.split(".")[-2]:
        return rounded(0.2 * x)
    if name.endswith("conv1d.weight"):
        return rounded(1.0 * x)
    if name.endswith("embed_tokens.weight"):
        return rounded(x)
    gain = next(
        (
            g
            for key, g in (
                ("lm_head", 2),
                ("mlp.gate.", 1.5),
                ("experts.", 1.5),
                ("in_proj_qkv", 3),
                ("out_proj", 1.5),
                ("o_proj", 2),
            )
            if key in name
        ),
        1,
    )
    return rounded(gain * x / np.sqrt(shape[-1]))


class Mtp(torch.nn.Module):
    """The multi-token-prediction head, put together from transformers' own layer: it ships no
    class for it.
    """

    def __init__(self, config):
        super().__init__()
        h = config.hidden_size
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            Qwen3_5MoeRMSNorm(h, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.layers = torch.nn.ModuleList([Qwen3_5MoeDecoderLayer(config, 3)])

    def forward(self, model, ids):
        """Logits for token t+2 at row t = 0..n-2, from the hidden state of t and the id of t+1."""
        hidden = model.model(ids).last_hidden_state[:, :-1]
        e = self.pre_fc_norm_embedding(model.model.embed_tokens(ids[:, 1:]))
        x = self.fc(torch.cat([e, self.pre_fc_norm_hidden(hidden)], dim=-1))
        n = x.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        places = torch.arange(n).view(1, 1, n).expand(3, 1, n)
        x = self.layers[0](
            x, position_embeddings=model.model.rotary_emb(x, places), attention_mask=mask
        )
        return model.lm_head(self.norm(x))


def random_model():
    rng = np.random.RandomState(SEED)
    config = text_config()
    config._attn_implementation = config._experts_implementation = "eager"
    model, mtp = Qwen3_5MoeForCausalLM(config).float().eval(), Mtp(config).float().eval()
    with torch.no_grad():
        for prefix, module in (("", model), ("mtp.", mtp)):
            for name, p in module.named_parameters():
                p.copy_(draw(prefix + name, tuple(p.shape), rng))
    return model, mtp


def official_tensors(model, mtp=None):
    """{official name: tensor}: BF16, but A_log and the gated norm F32, as published."""
    out = {}
    extra = [("mtp." + n, p) for n, p in mtp.named_parameters()] if mtp else []
    for name, p in list(model.named_parameters()) + extra:
        name = (
            name.replace("model.", "model.language_model.", 1)
            if name.startswith("model.")
            else name
        )
        wide = name.endswith(("A_log", "linear_attn.norm.weight"))
        out[name] = p.detach().clone() if wide else p.detach().bfloat16()
    return out


def write_hf(folder, tensors, tok):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    os.chmod(folder / "model.safetensors", 0o644)
    text = dict(
        SHAPE,
        model_type="qwen3_5_moe_text",
        layer_types=text_config().layer_types,
        full_attention_interval=4,
        rope_parameters=ROPE,
        partial_rotary_factor=0.25,
        attention_bias=False,
        attn_output_gate=True,
        hidden_act="silu",
        mamba_ssm_dtype="float32",
        mtp_num_hidden_layers=1,
        mtp_use_dedicated_embeddings=False,
        mlp_only_layers=[],
        eos_token_id=N_BASE,
        pad_token_id=None,
        dtype="bfloat16",
        use_cache=True,
        initializer_range=0.02,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
    )
    config = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe",
        tie_word_embeddings=False,
        text_config=text,
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps(dict(eos_token_id=[N_BASE + 2, N_BASE])) + "\n"
    )
    (folder / "tokenizer.json").write_text(tok.to_str(), encoding="utf-8")


# ---- GGUF, by the rules of llama.cpp's converter ----


def v_heads(x, dim, unit):
    """Value heads from grouped (HF: all heads of key head 0, then 1, ...) to tiled order along
    `dim`; `unit` entries a head.
    """
    nk, nv = SHAPE["linear_num_key_heads"], SHAPE["linear_num_value_heads"]
    shape = list(x.shape)
    y = x.reshape(shape[:dim] + [nk, nv // nk, unit] + shape[dim + 1 :])
    return np.ascontiguousarray(np.swapaxes(y, dim, dim + 1).reshape(shape))


def gguf_layer(P, get, out, fused):
    """Tensors of one layer. get(suffix) -> float32 array of the HF tensor or None."""
    hd = SHAPE["linear_value_head_dim"]
    kd = 2 * SHAPE["linear_num_key_heads"] * SHAPE["linear_key_head_dim"]
    out[P + "attn_norm.weight"] = 1 + get("input_layernorm.weight")
    out[P + "post_attention_norm.weight"] = 1 + get("post_attention_layernorm.weight")
    if get("self_attn.q_proj.weight") is not None:
        for n in "qkv":
            out[P + f"attn_{n}.weight"] = get(f"self_attn.{n}_proj.weight")
        out[P + "attn_output.weight"] = get("self_attn.o_proj.weight")
        for n in "qk":
            out[P + f"attn_{n}_norm.weight"] = 1 + get(f"self_attn.{n}_norm.weight")
    else:

        def tail(x):
            return np.concatenate([x[:kd], v_heads(x[kd:], 0, hd)])

        out[P + "attn_qkv.weight"] = tail(get("linear_attn.in_proj_qkv.weight"))
        out[P + "attn_gate.weight"] = v_heads(get("linear_attn.in_proj_z.weight"), 0, hd)
        out[P + "ssm_conv1d.weight"] = tail(get("linear_attn.conv1d.weight")[:, 0])
        out[P + "ssm_dt.bias"] = v_heads(get("linear_attn.dt_bias"), 0, 1)
        out[P + "ssm_a"] = v_heads(-np.exp(get("linear_attn.A_log")), 0, 1)
        out[P + "ssm_beta.weight"] = v_heads(get("linear_attn.in_proj_b.weight"), 0, 1)
        out[P + "ssm_alpha.weight"] = v_heads(get("linear_attn.in_proj_a.weight"), 0, 1)
        out[P + "ssm_norm.weight"] = get("linear_attn.norm.weight")
        out[P + "ssm_out.weight"] = v_heads(get("linear_attn.out_proj.weight"), 1, hd)
    out[P + "ffn_gate_inp.weight"] = get("mlp.gate.weight")
    both, ff = get("mlp.experts.gate_up_proj"), get("mlp.experts.down_proj").shape[2]
    if fused:
        out[P + "ffn_gate_up_exps.weight"] = both
    else:
        out[P + "ffn_gate_exps.weight"], out[P + "ffn_up_exps.weight"] = (
            both[:, :ff].copy(),
            both[:, ff:].copy(),
        )
    out[P + "ffn_down_exps.weight"] = get("mlp.experts.down_proj")
    for n in ("gate", "up", "down"):
        out[P + f"ffn_{n}_shexp.weight"] = get(f"mlp.shared_expert.{n}_proj.weight")
    out[P + "ffn_gate_inp_shexp.weight"] = get("mlp.shared_expert_gate.weight")[0]


def gguf_tensors(tensors, fused=False, mtp=False):
    """{GGUF name: float32 array} in file order."""
    arrays = {n: t.float().numpy() for n, t in tensors.items()}
    out = {
        "token_embd.weight": arrays["model.language_model.embed_tokens.weight"],
        "output.weight": arrays["lm_head.weight"],
        "output_norm.weight": 1 + arrays["model.language_model.norm.weight"],
    }
    n = SHAPE["num_hidden_layers"]
    for i in range(n):
        gguf_layer(
            f"blk.{i}.",
            lambda s, i=i: arrays.get(f"model.language_model.layers.{i}.{s}"),
            out,
            fused,
        )
    if mtp:
        P = f"blk.{n}."
        gguf_layer(P, lambda s: arrays.get(f"mtp.layers.0.{s}"), out, fused)
        out[P + "nextn.eh_proj.weight"] = arrays["mtp.fc.weight"]
        for to, frm in (
            ("enorm", "pre_fc_norm_embedding"),
            ("hnorm", "pre_fc_norm_hidden"),
            ("shared_head_norm", "norm"),
        ):
            out[P + f"nextn.{to}.weight"] = 1 + arrays[f"mtp.{frm}.weight"]
    return out


def add_metadata(w, tok, mtp):
    s = SHAPE
    w.add_name("tiny random qwen3_5_moe")
    w.add_block_count(s["num_hidden_layers"] + (1 if mtp else 0))
    w.add_context_length(s["max_position_embeddings"])
    w.add_embedding_length(s["hidden_size"])
    w.add_head_count(s["num_attention_heads"])
    w.add_head_count_kv(s["num_key_value_heads"])
    w.add_key_length(s["head_dim"])
    w.add_value_length(s["head_dim"])
    w.add_layer_norm_rms_eps(s["rms_norm_eps"])
    w.add_rope_dimension_count(int(s["head_dim"] * 0.25))
    w.add_rope_dimension_sections(ROPE["mrope_section"] + [0])
    w.add_rope_freq_base(float(ROPE["rope_theta"]))
    w.add_expert_count(s["num_experts"])
    w.add_expert_used_count(s["num_experts_per_tok"])
    w.add_expert_feed_forward_length(s["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(s["shared_expert_intermediate_size"])
    w.add_ssm_conv_kernel(s["linear_conv_kernel_dim"])
    w.add_ssm_state_size(s["linear_key_head_dim"])
    w.add_ssm_group_count(s["linear_num_key_heads"])
    w.add_ssm_time_step_rank(s["linear_num_value_heads"])
    w.add_ssm_inner_size(s["linear_num_value_heads"] * s["linear_value_head_dim"])
    w.add_full_attention_interval(s.get("full_attention_interval", 4))
    if mtp:
        w.add_nextn_predict_layers(1)
    model = json.loads(tok.to_str())["model"]
    by_id = {i: t for t, i in model["vocab"].items()} | {
        i: t.content for i, t in tok.get_added_tokens_decoder().items()
    }
    base, n = len(model["vocab"]), len(by_id)
    kinds = [
        1 if i < base else 4 if by_id[i] in make_tokenizer.USER_DEFINED else 3 for i in range(n)
    ] + [5] * (VOCAB - n)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list([by_id[i] for i in range(n)] + [f"[PAD{i}]" for i in range(n, VOCAB)])
    w.add_token_types(kinds)
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in model["merges"]])
    w.add_eos_token_id(base + 2)
    w.add_pad_token_id(base)
    w.add_add_bos_token(False)


def write_gguf(path, tensors, tok, dtype_of, mtp=False, split_tensors=0):
    """dtype_of(name) -> 'F32' | 'F16' | 'BF16' for matrices; vectors, router, conv stay F32, as
    the converter has it.
    """
    w = gguf.GGUFWriter(str(path), "qwen35moe", split_max_tensors=split_tensors)
    add_metadata(w, tok, mtp)
    for name, x in tensors.items():
        x = np.ascontiguousarray(x, dtype=np.float32)
        kind = (
            "F32"
            if x.ndim == 1 or "ffn_gate_inp" in name or "ssm_conv1d" in name
            else dtype_of(name)
        )
        if kind == "F32":
            w.add_tensor(name, x)
        else:
            qtype = gguf.GGMLQuantizationType[kind]
            data = gguf.quants.quantize(x, qtype)
            assert np.array_equal(gguf.quants.dequantize(data, qtype).reshape(x.shape), x), name
            w.add_tensor(name, data, raw_dtype=qtype)
    w.write_header_to_file(path)
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check_official_layout(folder, model, ids):
    """The folder is a real checkpoint: transformers loads it by its published names and computes
    the same.
    """
    again = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    with torch.no_grad():
        a, b = model(ids).logits, again(ids).logits
    assert torch.equal(a, b), (a - b).abs().max()


def report(n, logits, wide):
    """How far float32 itself is from float64 here, and how near the two best logits come."""
    noise, top = np.abs(wide - logits).max() / np.abs(wide).max(), np.sort(logits, axis=1)
    print(
        f"prompt {n}: logits {logits.min():.2f}..{logits.max():.2f}, float32 against float64 "
        f"{noise:.1e}, smallest gap of the two best {(top[:, -1] - top[:, -2]).min():.1e}"
    )


def main(out):
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    tokens = make_tokenizer.load_ranks()
    merges = make_tokenizer.derive_merges(tokens[:N_BASE])
    tok = make_tokenizer.build(tokens[:N_BASE], merges)
    model, mtp = random_model()
    tensors = official_tensors(model, mtp)
    write_hf(out / "hf", tensors, tok)
    rng = np.random.RandomState(SEED + 1)
    for n in PROMPTS:
        ids = torch.from_numpy(rng.randint(0, N_BASE, (1, n)))
        with torch.no_grad():
            logits = model(ids).logits[0].numpy()
            wide = model.double()(ids).logits[0].numpy()
            model.float()
        report(n, logits, wide)
        np.save(out / f"ids_{n}.npy", ids[0].numpy().astype("<i4"))
        np.save(out / f"logits_{n}.npy", logits.astype("<f4"))
    check_official_layout(out / "hf", model, ids)
    ids = torch.from_numpy(np.load(out / "ids_64.npy").astype(np.int64))[None]
    with torch.no_grad():
        np.save(out / "mtp_logits_64.npy", mtp(model, ids)[0].numpy().astype("<f4"))
    plain, fused, with_mtp = (
        gguf_tensors(tensors),
        gguf_tensors(tensors, fused=True),
        gguf_tensors(tensors, mtp=True),
    )
    write_gguf(out / "tiny-f32.gguf", plain, tok, lambda n: "F32")
    write_gguf(out / "tiny-fused-f16.gguf", fused, tok, lambda n: "F16")
    write_gguf(
        out / "tiny-split-bf16.gguf",
        plain,
        tok,
        lambda n: "BF16",
        split_tensors=(len(plain) + 1) // 2,
    )
    mixed = {0: "F16", 1: "BF16", 2: "F32"}
    write_gguf(out / "tiny-mtp-mixed.gguf", with_mtp, tok, lambda n: mixed[len(n) % 3], mtp=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
