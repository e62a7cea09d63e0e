"""PyTorch reference of the architecture in float32, one sequence at a time, written for reading.

It follows the specification's formulas directly and shares no code with the training layout or
the C program. A model is a folder with config.json and model.safetensors. Forwards:

    clean(tokens)          token-causal; with write=True the only forward that changes the state
    block(tokens, mode)    one pass over a block that starts at the state; changes nothing

    mode  causal     every row reads the GDN state after itself
          blockend   every row reads the GDN state after the block's last row
          mixed      the leading clean rows read after themselves, the others at the block's end
          bidir      causal plus mix times the strict backward branch
"""

import json
import os

import torch
import torch.nn.functional as F

import safetensors

EPS = 1e-6
BLOCK_MODES = ("causal", "blockend", "mixed", "bidir")


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + weight)


def l2_norm(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS)


class State:
    """What clean forwards leave behind: length, GDN states and conv tails, keys and values."""

    def __init__(self, model):
        c = model.config
        self.length = 0
        self.memory, self.tail, self.keys, self.values = {}, {}, {}, {}
        for i, kind in enumerate(c["layer_types"]):
            if kind == "linear_attention":
                self.memory[i] = torch.zeros(model.value_heads, model.head_dim, model.value_dim)
                self.tail[i] = torch.zeros(3, model.channels)
            else:
                empty = torch.zeros(0, c["num_key_value_heads"], c["head_dim"])
                self.keys[i], self.values[i] = empty, empty


class Reference:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            top = json.load(file)
        self.config = c = top["text_config"]
        self.mask, self.block_size = c["mask_token_id"], c["block_size"]
        tensors, self.metadata = safetensors.read(os.path.join(folder, "model.safetensors"))
        self.tensors = {name: torch.from_numpy(t.copy()) for name, t in tensors.items()}
        self.key_heads, self.value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.head_dim, self.value_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.key_width = self.key_heads * self.head_dim
        self.channels = 2 * self.key_width + self.value_heads * self.value_dim
        self.rotary = int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"])
        exponent = torch.arange(0, self.rotary, 2, dtype=torch.float64) / self.rotary
        self.inv_freq = c["rope_parameters"]["rope_theta"] ** -exponent

    def weight(self, layer, name):
        return self.tensors[f"model.language_model.layers.{layer}.{name}"]

    # ------------------------------------------------------------ Gated DeltaNet

    def convolved(self, raw, before, taps):
        """q, k, v of rows that follow the three rows `before`; taps [channels, 4], 3 = current."""
        rows = len(raw)
        extended = torch.cat([before, raw])
        mixed = F.silu(sum(extended[tap : tap + rows] * taps[:, tap] for tap in range(4)))
        q, k, v = mixed.split(
            [self.key_width, self.key_width, self.value_heads * self.value_dim], 1
        )
        q = l2_norm(q.reshape(rows, self.key_heads, self.head_dim)) * self.head_dim**-0.5
        k = l2_norm(k.reshape(rows, self.key_heads, self.head_dim))
        repeat = self.value_heads // self.key_heads  # value head n uses key head n / repeat
        return (
            q.repeat_interleave(repeat, 1),
            k.repeat_interleave(repeat, 1),
            v.reshape(rows, self.value_heads, self.value_dim),
        )

    @staticmethod
    def scan(q, k, v, decay_log, beta, memory, strict):
        """The recurrence: each row's read-out and the final memory [head][key dim][value dim]."""
        out = []
        for t in range(len(q)):
            if strict:
                out.append(torch.einsum("nij,ni->nj", memory, q[t]))
            memory = memory * decay_log[t].exp()[:, None, None]
            known = torch.einsum("nij,ni->nj", memory, k[t])
            delta = beta[t][:, None] * (v[t] - known)
            memory = memory + k[t][:, :, None] * delta[:, None, :]
            if not strict:
                out.append(torch.einsum("nij,ni->nj", memory, q[t]))
        return torch.stack(out), memory

    def gates(self, layer, h, branch):
        a = h @ self.weight(layer, f"linear_attn.{branch}in_proj_a.weight").T
        b = h @ self.weight(layer, f"linear_attn.{branch}in_proj_b.weight").T
        speed = self.weight(layer, f"linear_attn.{branch}A_log").exp()
        return (
            -speed * F.softplus(a + self.weight(layer, f"linear_attn.{branch}dt_bias")),
            b.sigmoid(),
        )

    def backward_branch(self, layer, h, raw):
        """Strict read-outs of the scan from the block's last row to its first."""
        taps = self.weight(layer, "linear_attn.bwd.conv1d.weight")[:, 0]
        q, k, v = self.convolved(raw.flip(0), torch.zeros(3, self.channels), taps)
        decay_log, beta = self.gates(layer, h, "bwd.")
        nothing = torch.zeros(self.value_heads, self.head_dim, self.value_dim)
        out, _ = self.scan(q, k, v, decay_log.flip(0), beta.flip(0), nothing, strict=True)
        return out.flip(0)

    def gdn(self, layer, h, state, write, mode, leading_clean):
        raw = h @ self.weight(layer, "linear_attn.in_proj_qkv.weight").T
        z = h @ self.weight(layer, "linear_attn.in_proj_z.weight").T
        taps = self.weight(layer, "linear_attn.conv1d.weight")[:, 0]
        q, k, v = self.convolved(raw, state.tail[layer], taps)
        decay_log, beta = self.gates(layer, h, "")
        out, memory = self.scan(q, k, v, decay_log, beta, state.memory[layer], strict=False)
        if mode in ("blockend", "mixed"):
            at_end = torch.einsum("nij,tni->tnj", memory, q)
            first = leading_clean if mode == "mixed" else 0
            out = torch.cat([out[:first], at_end[first:]])
        if mode == "bidir":
            mix = self.weight(layer, "linear_attn.bwd.mix")
            out = out + mix[:, None] * self.backward_branch(layer, h, raw)
        if write:
            state.memory[layer] = memory
            state.tail[layer] = torch.cat([state.tail[layer], raw])[-3:]
        normed = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + EPS)
        y = (normed * self.weight(layer, "linear_attn.norm.weight")).reshape(len(h), -1) * F.silu(z)
        return y @ self.weight(layer, "linear_attn.out_proj.weight").T

    # ------------------------------------------------------------ attention

    def rope(self, x, positions):
        angle = positions[:, None].double() * self.inv_freq
        cosine, sine = angle.cos().float()[:, None], angle.sin().float()[:, None]
        half = self.rotary // 2
        a, b, rest = x[..., :half], x[..., half : self.rotary], x[..., self.rotary :]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], -1)

    def attention(self, layer, h, state, write, causal):
        c, rows, dim = self.config, len(h), self.config["head_dim"]
        positions = torch.arange(state.length, state.length + rows)
        project = lambda name: h @ self.weight(layer, f"self_attn.{name}.weight").T
        both = project("q_proj").reshape(rows, c["num_attention_heads"], 2 * dim)
        q, gate = both[..., :dim], both[..., dim:]
        k = project("k_proj").reshape(rows, c["num_key_value_heads"], dim)
        v = project("v_proj").reshape(rows, c["num_key_value_heads"], dim)
        q = self.rope(rms_norm(q, self.weight(layer, "self_attn.q_norm.weight")), positions)
        k = self.rope(rms_norm(k, self.weight(layer, "self_attn.k_norm.weight")), positions)
        keys, values = torch.cat([state.keys[layer], k]), torch.cat([state.values[layer], v])
        repeat = c["num_attention_heads"] // c["num_key_value_heads"]
        scores = torch.einsum("rhd,khd->hrk", q, keys.repeat_interleave(repeat, 1)) * dim**-0.5
        if causal:
            hidden = torch.arange(len(keys)) > positions[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        out = torch.einsum("hrk,khd->rhd", scores.softmax(-1), values.repeat_interleave(repeat, 1))
        if write:
            state.keys[layer], state.values[layer] = keys, values
        gated = (out * gate.sigmoid()).reshape(rows, -1)
        return gated @ self.weight(layer, "self_attn.o_proj.weight").T

    # ------------------------------------------------------------ experts

    def moe(self, layer, h):
        c, width = self.config, self.config["moe_intermediate_size"]
        logits = h @ self.weight(layer, "mlp.gate.weight").T
        # A stable sort gives equal logits to the lower expert.
        order = torch.sort(logits, dim=1, descending=True, stable=True)
        chosen = order.indices[:, : c["num_experts_per_tok"]]
        share = order.values[:, : c["num_experts_per_tok"]].softmax(1)
        gate = (h @ self.weight(layer, "mlp.shared_expert_gate.weight").T).sigmoid()
        shared = lambda name: self.weight(layer, f"mlp.shared_expert.{name}_proj.weight")
        y = gate * ((F.silu(h @ shared("gate").T) * (h @ shared("up").T)) @ shared("down").T)
        gate_up = self.weight(layer, "mlp.experts.gate_up_proj")
        down = self.weight(layer, "mlp.experts.down_proj")
        for expert in chosen.unique().tolist():
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            inner = h[rows] @ gate_up[expert].T
            out = (F.silu(inner[:, :width]) * inner[:, width:]) @ down[expert].T
            y = y.index_add(0, rows, share[rows, slots][:, None] * out)
        self.observe(layer, logits, chosen)
        return y

    def observe(self, layer, logits, chosen):
        """Hook for tests and traces."""

    # ------------------------------------------------------------ the whole model

    def forward(self, tokens, state, write, mode, leading_clean):
        x = self.tensors["model.language_model.embed_tokens.weight"][torch.as_tensor(tokens)]
        for i, kind in enumerate(self.config["layer_types"]):
            h = rms_norm(x, self.weight(i, "input_layernorm.weight"))
            if kind == "linear_attention":
                x = x + self.gdn(i, h, state, write, mode, leading_clean)
            else:
                x = x + self.attention(i, h, state, write, causal=mode == "clean")
            x = x + self.moe(i, rms_norm(x, self.weight(i, "post_attention_layernorm.weight")))
        if write:
            state.length += len(tokens)
        return x

    def logits(self, x):
        x = rms_norm(x, self.tensors["model.language_model.norm.weight"])
        return x @ self.tensors["lm_head.weight"].T

    def clean(self, tokens, state, write=True):
        return self.forward(tokens, state, write, "clean", 0)

    def block(self, tokens, state, mode="bidir"):
        """leading_clean of mode mixed: the rows before the first mask."""
        leading = next((i for i, t in enumerate(tokens) if t == self.mask), len(tokens))
        return self.forward(tokens, state, False, mode, leading)


# ---------------------------------------------------------------- greedy decoding


def decode_ar(model, prompt, stops, limit):
    """Tokens up to and including a stop, and the number of forwards after the prompt's."""
    state, out = State(model), []
    x = model.clean(prompt, state)
    while True:
        logits = model.logits(x[-1])
        logits[model.mask] = float("-inf")
        out.append(int(logits.argmax()))
        if out[-1] in stops or len(out) >= limit:
            return out, len(out) - 1
        x = model.clean(out[-1:], state)


def commit(model, tokens, logits, threshold):
    """Fills the masked rows at or above the threshold, or the surest one."""
    logits[:, model.mask] = float("-inf")
    sure, best = logits.softmax(-1).max(-1)
    masked = tokens == model.mask
    chosen = masked & (sure >= threshold)
    if not chosen.any():
        chosen = torch.zeros_like(masked)
        chosen[torch.where(masked, sure, torch.tensor(-1.0)).argmax()] = True
    return torch.where(chosen, best, tokens)


def reached_stop(model, rows, stops):
    """Index of the first stop that has no mask before it, or None."""
    for i, token in enumerate(rows):
        if token == model.mask:
            return None
        if token in stops:
            return i
    return None


def decode_block(model, prompt, stops, limit, threshold=0.95, mode="bidir"):
    """Tokens as decode_ar, and the numbers of block passes and of commit forwards."""
    size, state, out = model.block_size, State(model), []
    begin = len(prompt) // size * size
    if begin:
        model.clean(prompt[:begin], state)
    fixed = prompt[begin:]
    passes = commits = 0
    while True:
        tokens = torch.tensor(fixed + [model.mask] * (size - len(fixed)))
        stop = None
        while stop is None and (tokens == model.mask).any():
            x = model.block(tokens.tolist(), state, mode)
            tokens = commit(model, tokens, model.logits(x), threshold)
            passes += 1
            stop = reached_stop(model, tokens[len(fixed) :].tolist(), stops)
        new = tokens[len(fixed) :].tolist()
        if stop is not None:
            return out + new[: stop + 1], passes, commits
        out += new
        if len(out) >= limit:
            return out, passes, commits
        model.clean(tokens.tolist(), state)
        commits += 1
        fixed = []
