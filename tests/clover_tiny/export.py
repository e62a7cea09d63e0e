"""Turns a training checkpoint into the Hugging Face folder model/.

    python3 export.py RUN/checkpoint.pt model [--verdict verdict.json]

chat_template.jinja and tokenizer.json (by train_tokenizer.py) lie in model/ already and are copied
when the folder is another one. `--verdict` is what evaluate.py --verdict measured: it goes into
config.json and the metadata of model.safetensors.
"""

import argparse
import json
import math
import os
import shutil

import torch

import model as training
import safetensors
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
GIVEN = ("chat_template.jinja", "tokenizer.json")
# These two kinds are F32 in the official files too.
WIDE = ("A_log", "linear_attn.norm.weight")
CONTEXT = 1024


def gdn_tensors(p, i, cfg):
    sizes = [cfg.channels, cfg.value_dim] + [cfg.value_heads] * 4
    qkv, z, a, b, back_a, back_b = p[f"{i}.in"].split(sizes)
    names = {
        "in_proj_qkv.weight": qkv,
        "in_proj_z.weight": z,
        "in_proj_a.weight": a,
        "in_proj_b.weight": b,
        "conv1d.weight": p[f"{i}.conv"][:, None],
        "A_log": p[f"{i}.a_log"],
        "dt_bias": p[f"{i}.dt"],
        "norm.weight": p[f"{i}.gdn_norm"],
        "out_proj.weight": p[f"{i}.out"],
        "bwd.in_proj_a.weight": back_a,
        "bwd.in_proj_b.weight": back_b,
        "bwd.conv1d.weight": p[f"{i}.back_conv"][:, None],
        "bwd.A_log": p[f"{i}.back_a_log"],
        "bwd.dt_bias": p[f"{i}.back_dt"],
        "bwd.mix": p[f"{i}.mix"],
    }
    return {f"linear_attn.{name}": tensor for name, tensor in names.items()}


def attention_tensors(p, i, cfg):
    kv = cfg.kv_heads * cfg.attn_dim
    q, k, v = p[f"{i}.in"].split([2 * cfg.q_heads * cfg.attn_dim, kv, kv])
    return {
        "self_attn.q_proj.weight": q,
        "self_attn.k_proj.weight": k,
        "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": p[f"{i}.out"],
        "self_attn.q_norm.weight": p[f"{i}.q_norm"],
        "self_attn.k_norm.weight": p[f"{i}.k_norm"],
    }


def expert_tensors(p, i, cfg):
    gate_up, down = p[f"{i}.gate_up"], p[f"{i}.down"]
    return {
        "input_layernorm.weight": p[f"{i}.norm1"],
        "post_attention_layernorm.weight": p[f"{i}.norm2"],
        "mlp.gate.weight": p[f"{i}.router"],
        "mlp.experts.gate_up_proj": gate_up[: cfg.experts],
        "mlp.experts.down_proj": down[: cfg.experts],
        "mlp.shared_expert.gate_proj.weight": gate_up[cfg.experts, : cfg.width],
        "mlp.shared_expert.up_proj.weight": gate_up[cfg.experts, cfg.width :],
        "mlp.shared_expert.down_proj.weight": down[cfg.experts],
        "mlp.shared_expert_gate.weight": p[f"{i}.shared_gate"],
    }


def named_tensors(p, cfg):
    """Training parameters (float32) under their Hugging Face names."""
    out = {
        "model.language_model.embed_tokens.weight": p["embed"],
        "model.language_model.norm.weight": p["norm"],
        "lm_head.weight": p["head"],
    }
    for i, kind in enumerate(cfg.layers):
        mixer = attention_tensors if kind == "A" else gdn_tensors
        for name, tensor in {**expert_tensors(p, i, cfg), **mixer(p, i, cfg)}.items():
            out[f"model.language_model.layers.{i}.{name}"] = tensor
    return out


def branch_tensors(p, cfg):
    return [tensor for name, tensor in named_tensors(p, cfg).items() if ".bwd." in name]


def load_weights(model, folder, fixed_branch=None):
    """Fills a training Model with the weights of an exported folder: export's inverse.

    fixed_branch: the backward branch stays as it is, but for its weight in a layer's output, which
    becomes this, and its decay: nothing is left of a row at the next.
    """
    stored, _ = safetensors.read(os.path.join(folder, "model.safetensors"))
    p = {}
    for group in (model.matrices, model.vectors):
        p.update(training.views(group.shapes, group.master))
    wanted = named_tensors(p, model.cfg)
    if set(wanted) != set(stored):
        raise SystemExit(f"{folder}: other tensors: {sorted(set(wanted) ^ set(stored))[:4]} ...")
    branch = {"mix": fixed_branch, "A_log": math.log(16), "dt_bias": 1.0}
    for name, view in wanted.items():
        value = branch.get(name.split(".bwd.")[-1]) if fixed_branch is not None else None
        if value is not None:
            view.fill_(value)
        elif fixed_branch is None or ".bwd." not in name:
            view.copy_(torch.from_numpy(stored[name]))
    model.load(model.state())


def text_config(cfg, coder):
    return {
        "model_type": "clover_moe_text",
        "num_hidden_layers": len(cfg.layers),
        "hidden_size": cfg.hidden,
        "num_attention_heads": cfg.q_heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.attn_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "layer_types": [
            "full_attention" if kind == "A" else "linear_attention" for kind in cfg.layers
        ],
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": cfg.head_dim,
        "linear_value_head_dim": cfg.head_dim,
        "linear_num_key_heads": cfg.key_heads,
        "linear_num_value_heads": cfg.value_heads,
        "mamba_ssm_dtype": "float32",
        "num_experts": cfg.experts,
        "num_experts_per_tok": cfg.top_k,
        "moe_intermediate_size": cfg.width,
        "shared_expert_intermediate_size": cfg.width,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "rms_norm_eps": 1e-06,
        "vocab_size": cfg.vocab,
        "tie_word_embeddings": False,
        "max_position_embeddings": CONTEXT,
        "partial_rotary_factor": cfg.rotary / cfg.attn_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": cfg.theta,
            "partial_rotary_factor": cfg.rotary / cfg.attn_dim,
        },
        "eos_token_id": coder.end_text,
        "pad_token_id": None,
        "dtype": "bfloat16",
        "use_cache": True,
        "initializer_range": 0.02,
        "block_size": training.BLOCK,
        "mask_token_id": coder.mask,
        "confidence_threshold": 0.95,
        "expert_pool_size": 0,
    }


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write_configs(folder, cfg, coder, verdict):
    top = {
        "architectures": ["CloverMoeForCausalLM"],
        "model_type": "clover_moe",
        "tie_word_embeddings": False,
        "text_config": text_config(cfg, coder),
    }
    if verdict:
        top["block_mode"] = verdict
    write_json(folder, "config.json", top)
    stops = [coder.added["<|im_end|>"], coder.end_text]
    write_json(
        folder,
        "generation_config.json",
        {
            "do_sample": False,
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "eos_token_id": stops,
            "pad_token_id": coder.end_text,
        },
    )
    write_json(
        folder,
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "bos_token": None,
            "add_bos_token": False,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|mask|>",
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    )


def export(checkpoint, folder, verdict=None, exact=False):
    """Writes the folder from a loaded training state; exact keeps every tensor in F32 (tests)."""
    cfg = training.Config(**checkpoint["config"])
    initial, p = training.Initializer(cfg, 0), {}
    for group in ("matrices", "vectors"):
        shapes = {name: tensor.shape for name, tensor in getattr(initial, group).items()}
        p.update(training.views(shapes, checkpoint[group].float()))
    named = {
        name: (tensor.numpy(), "F32" if exact or name.endswith(WIDE) else "BF16")
        for name, tensor in named_tensors(p, cfg).items()
    }
    metadata = {"format": "pt", "license": "Apache-2.0", "name": "clover-tiny"}
    if verdict:
        metadata["block_mode"] = json.dumps(verdict)
        metadata["block_mode_earned"] = "true" if verdict["block_mode_earned"] else "false"
    os.makedirs(folder, exist_ok=True)
    safetensors.write(os.path.join(folder, "model.safetensors"), named, metadata)
    for name in GIVEN:
        if not os.path.exists(os.path.join(folder, name)):
            shutil.copy(os.path.join(HERE, "model", name), folder)
    write_configs(folder, cfg, Tokenizer.load(os.path.join(folder, "tokenizer.json")), verdict)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("folder")
    parser.add_argument("--verdict", help="JSON file written by evaluate.py --verdict")
    args = parser.parse_args()
    verdict = None
    if args.verdict:
        with open(args.verdict, encoding="utf-8") as file:
            verdict = json.load(file)
    export(torch.load(args.checkpoint, map_location="cpu"), args.folder, verdict)


if __name__ == "__main__":
    main()
