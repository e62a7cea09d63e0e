"""clover-tiny in its training layout: one graph, one pass through the layers, for both losses.

A batch is B clean sequences of equal padded length T plus M noisy blocks of 32 rows, each a masked
copy of one block of one sequence. All rows run through the norms, projections and experts together;
only the mixers tell them apart:

  GDN        a clean row scans causally from zero; the state before every 32nd row is kept. A noisy
             block scans forward from that state with the clean conv tail, and backward from zero
             (the bidirectional branch).
  attention  a clean row is causal. A noisy row sees the clean rows before its block and all 32 rows
             of its block.

So a noisy block reads clean state and writes none, as in decoding, and gradients flow through what
it reads.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from mixers import BLOCK, AttnSplit, Experts, GdnMixer, Kernels, Layout, OutGate, RmsNorm


@dataclass
class Config:
    vocab: int = 2048
    hidden: int = 256
    layers: str = "GGGA"
    key_heads: int = 2
    value_heads: int = 4
    head_dim: int = 128  # fixed in kernels.h
    q_heads: int = 4
    kv_heads: int = 2
    attn_dim: int = 256
    rotary: int = 64
    theta: float = 1e7
    experts: int = 16
    top_k: int = 4
    width: int = 256

    @property
    def key_dim(self):
        return self.key_heads * self.head_dim

    @property
    def value_dim(self):
        return self.value_heads * self.head_dim

    @property
    def channels(self):
        return 2 * self.key_dim + self.value_dim

    @property
    def gdn_width(self):
        """Rows of a GDN layer's joint input projection: qkv, z, a, b, backward a, backward b."""
        return self.channels + self.value_dim + 4 * self.value_heads

    @property
    def attn_width(self):
        """Rows of an attention layer's joint input projection: q and gate per head, k, v."""
        return (2 * self.q_heads + 2 * self.kv_heads) * self.attn_dim


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def copy_ready(cfg, layer, in_proj, conv, a_log, dt):
    """Initial values that let a GDN layer copy from the first step on.

    The state maps keys to values. With equal projections for q and k, and taps that make a row's
    key the row before it, a row finds the rows that followed the same token: head 0 for the next
    token, head 1 for masked rows, which look from their left neighbour. One value head of each
    keeps its state for hundreds of rows. Layer 1 leaves head 1 free.
    """
    d, key_dim = cfg.head_dim, cfg.key_dim
    taps = [([0, 0, 0.3, 1.0], [0, 0.3, 1.0, 0]), ([0, 0.3, 1.0, 0], [0, 0.3, 1.0, 0])]
    for head, (q_taps, k_taps) in enumerate(taps):
        if layer == 1 and head == 1:
            continue
        q_rows = slice(head * d, head * d + d)
        k_rows = slice(key_dim + head * d, key_dim + head * d + d)
        in_proj[q_rows] = in_proj[k_rows]
        conv[q_rows], conv[k_rows] = torch.tensor(q_taps), torch.tensor(k_taps)
        value_head = head * (cfg.value_heads // cfg.key_heads)
        begin = 2 * key_dim + value_head * d
        conv[begin : begin + d] = torch.tensor([0, 0, 0, 1.0])
        a_log[value_head] = 0.0
        dt[value_head] = inverse_softplus(torch.tensor(0.003))


class Initializer:
    """Fills `matrices` (trained with weight decay, kept as act copies) and `vectors`, by name."""

    def __init__(self, cfg, seed):
        self.cfg, self.generator = cfg, torch.Generator().manual_seed(seed)
        self.matrices = {"head": self.normal(cfg.vocab, cfg.hidden, std=0.02)}
        self.vectors = {
            "embed": self.normal(cfg.vocab, cfg.hidden, std=0.5),
            "norm": torch.zeros(cfg.hidden),
        }
        for i, kind in enumerate(cfg.layers):
            self.experts(f"{i}.")
            if kind == "A":
                self.attention(f"{i}.")
            else:
                self.gdn(f"{i}.", i)

    def normal(self, *shape, std=None):
        """Standard deviation 1 / sqrt(inputs) unless given."""
        std = 1 / math.sqrt(shape[-1]) if std is None else std
        return torch.randn(*shape, generator=self.generator) * std

    def uniform(self, *shape):
        return torch.rand(*shape, generator=self.generator)

    def out_matrix(self, *shape):
        return self.normal(*shape, std=0.5 / math.sqrt(shape[-1]))

    def experts(self, at):
        cfg, hidden = self.cfg, self.cfg.hidden
        self.vectors[at + "norm1"] = torch.zeros(hidden)
        self.vectors[at + "norm2"] = torch.zeros(hidden)
        self.vectors[at + "router"] = self.normal(cfg.experts, hidden, std=0.5 / hidden**0.5)
        self.vectors[at + "shared_gate"] = self.normal(1, hidden, std=0.1 / hidden**0.5)
        self.matrices[at + "gate_up"] = self.normal(cfg.experts + 1, 2 * cfg.width, hidden)
        self.matrices[at + "down"] = self.out_matrix(cfg.experts + 1, hidden, cfg.width)

    def attention(self, at):
        cfg = self.cfg
        self.matrices[at + "in"] = self.normal(cfg.attn_width, cfg.hidden)
        self.matrices[at + "out"] = self.out_matrix(cfg.hidden, cfg.q_heads * cfg.attn_dim)
        self.vectors[at + "q_norm"] = torch.zeros(cfg.attn_dim)
        self.vectors[at + "k_norm"] = torch.zeros(cfg.attn_dim)

    def gdn(self, at, layer):
        cfg = self.cfg
        in_proj = self.normal(cfg.gdn_width, cfg.hidden)
        for side in ("", "back_"):
            conv = self.uniform(cfg.channels, 4) - 0.5
            a_log = torch.log(self.uniform(cfg.value_heads) * 15 + 1)
            log_dt = self.uniform(cfg.value_heads) * math.log(100) + math.log(1e-3)
            dt = inverse_softplus(torch.exp(log_dt))
            if not side:
                copy_ready(cfg, layer, in_proj, conv, a_log, dt)
            named = {"conv": conv, "a_log": a_log, "dt": dt}
            self.vectors.update({at + side + name: value for name, value in named.items()})
        self.matrices[at + "in"] = in_proj
        self.matrices[at + "out"] = self.out_matrix(cfg.hidden, cfg.value_dim)
        self.vectors[at + "mix"] = torch.full((cfg.value_heads,), 0.5)
        self.vectors[at + "gdn_norm"] = torch.ones(cfg.head_dim)


def views(shapes, flat):
    """Named tensors inside a flat one; shapes: name -> shape in order."""
    out, at = {}, 0
    for name, shape in shapes.items():
        out[name] = flat[at : at + shape.numel()].view(shape)
        at += shape.numel()
    return out


class FlatGroup:
    """Parameters of one kind in flat shared memory, Adam's moments, a gradient for each process."""

    def __init__(self, tensors, dtype, procs):
        self.shapes = {name: t.shape for name, t in tensors.items()}
        self.size = sum(t.numel() for t in tensors.values())
        self.master = torch.cat([t.reshape(-1) for t in tensors.values()]).share_memory_()
        self.mean, self.var = (torch.zeros(self.size).share_memory_() for _ in range(2))
        narrow = dtype != torch.float32
        self.copy = self.master.to(dtype).share_memory_() if narrow else self.master
        self.grads = [torch.zeros(self.size, dtype=dtype).share_memory_() for _ in range(procs)]

    def parameters(self, rank):
        """Leaves whose .grad is this process's slice of shared memory."""
        params, grads = views(self.shapes, self.copy), views(self.shapes, self.grads[rank])
        for name, p in params.items():
            params[name] = p.detach().requires_grad_()
            params[name].grad = grads[name]
        return params


class Route:
    """Expert choice of every row, and the rows sorted by expert."""

    def __init__(self, logits, cfg, call):
        n, slots = len(logits), cfg.top_k + 1
        ints = lambda *shape: torch.empty(shape, dtype=torch.int32)
        self.choice, self.place = ints(n, slots), ints(n, slots)
        self.source, self.begin = ints(n * slots + BLOCK * (cfg.experts + 1)), ints(cfg.experts + 2)
        to = (self.choice, self.place, self.source, self.begin)
        call("moe_route", n, cfg.experts, cfg.top_k, logits.detach().contiguous(), *to)


class Model:
    def __init__(self, cfg, seed=1, dtype=torch.bfloat16, procs=1, strict=1):
        self.cfg, self.dtype, self.procs, self.strict = cfg, dtype, procs, strict
        self.call = Kernels(dtype == torch.float32)
        initial = Initializer(cfg, seed)
        self.matrices = FlatGroup(initial.matrices, dtype, procs)
        self.vectors = FlatGroup(initial.vectors, torch.float32, procs)
        exponent = torch.arange(0, cfg.rotary, 2, dtype=torch.float64) / cfg.rotary
        self.inv_freq = cfg.theta**-exponent
        self.attach(0)

    def attach(self, rank):
        """Makes this process's gradients those of slot `rank`."""
        self.rank = rank
        self.p = {**self.matrices.parameters(rank), **self.vectors.parameters(rank)}

    def state(self):
        return {
            "config": asdict(self.cfg),
            "matrices": self.matrices.master,
            "vectors": self.vectors.master,
        }

    def load(self, state):
        self.matrices.master.copy_(state["matrices"])
        self.vectors.master.copy_(state["vectors"])
        self.matrices.copy.copy_(self.matrices.master)

    def count(self):
        return self.matrices.size + self.vectors.size

    def zero_grads(self):
        """The experts' gradients are written, not added to."""
        self.vectors.grads[self.rank].zero_()
        for name in self.matrices.shapes:
            if not name.endswith(("gate_up", "down")):
                self.p[name].grad.zero_()

    def attend(self, q, k, v, mask):
        """q [n, length, q heads, d]; k, v [n, kv heads, J, d]; mask broadcast to [n, length, J]."""
        cfg, (n, length, heads, d) = self.cfg, q.shape
        nkv, columns = cfg.kv_heads, k.shape[2]
        repeat = heads // nkv
        q = q.view(n, length, nkv, repeat, d).permute(0, 2, 3, 1, 4).reshape(n * nkv, -1, d)
        k, v = k.reshape(n * nkv, columns, d), v.reshape(n * nkv, columns, d)
        scores = torch.bmm(q, k.transpose(1, 2)).float() * d**-0.5
        scores = scores.view(n, nkv * repeat, length, columns) + mask[:, None]
        weights = torch.softmax(scores, -1).to(self.dtype).view(n * nkv, -1, columns)
        out = torch.bmm(weights, v).view(n, nkv, repeat, length, d)
        return out.permute(0, 3, 1, 2, 4).reshape(n * length, heads, d)

    def attention(self, at, rows, lay, tables):
        cfg, p, (b, t, m) = self.cfg, self.p, (lay.batch, lay.length, lay.blocks)
        norms = (p[at + "q_norm"], p[at + "k_norm"])
        q, k, v, gate = AttnSplit.apply(rows, *norms, *tables, cfg, self.call)
        sizes, wide = [lay.clean, m * BLOCK], (cfg.q_heads, cfg.attn_dim)
        (q, q_own), (k, k_own), (v, v_own) = (x.split(sizes) for x in (q, k, v))
        by_head = lambda x, n: x.reshape(n, -1, cfg.kv_heads, cfg.attn_dim).transpose(1, 2)
        k, v = by_head(k, b).contiguous(), by_head(v, b).contiguous()
        causal = torch.full((1, t, t), -1e9).triu(1)
        o = self.attend(q.reshape(b, t, *wide), k, v, causal)
        if m:
            keys = torch.cat([k.index_select(0, lay.block_seq), by_head(k_own, m)], 2)
            values = torch.cat([v.index_select(0, lay.block_seq), by_head(v_own, m)], 2)
            column = torch.arange(t + BLOCK)
            seen = (column < lay.block_index[:, None] * BLOCK) | (column >= t)
            mask = torch.where(seen, 0.0, -1e9)[:, None]
            o = torch.cat([o, self.attend(q_own.reshape(m, BLOCK, *wide), keys, values, mask)])
        return OutGate.apply(o, gate, self.call).view(lay.rows, -1)

    def gdn(self, at, rows, lay):
        own = ("conv", "a_log", "dt", "back_conv", "back_a_log", "back_dt", "mix", "gdn_norm")
        return GdnMixer.apply(rows, *(self.p[at + n] for n in own), lay, self.cfg, self.call)

    def experts(self, at, x, balance):
        """balance, if given, receives (load-balance loss, load of each expert over its share)."""
        cfg, p = self.cfg, self.p
        h = RmsNorm.apply(x, p[at + "norm2"], self.dtype, self.call)
        logits = h.float() @ p[at + "router"].t()
        route = Route(logits, cfg, self.call)
        chosen = route.choice[:, : cfg.top_k].long()
        shared = torch.sigmoid(h.float() @ p[at + "shared_gate"].t())
        weight = torch.cat([torch.softmax(logits.gather(1, chosen), 1), shared], 1)
        if balance is not None:
            count = torch.bincount(chosen.reshape(-1), minlength=cfg.experts)
            load = count.float() * cfg.experts / chosen.numel()
            balance.append(((load * torch.softmax(logits, 1).mean(0)).sum(), load))
        return Experts.apply(x, h, weight, p[at + "gate_up"], p[at + "down"], route, self.call)

    def forward(self, tokens, block_tokens, block_seq, block_index, balance=None, wanted=None):
        """tokens [B,T]; block_tokens [M,32] is a masked copy of block
        block_index[m] of sequence block_seq[m].

        Returns the rows before the final norm: all B*T + 32*M of them, or those whose numbers are
        in `wanted` (the last layer's experts then run on those only).
        """
        p, lay = self.p, Layout(*tokens.shape, block_seq, block_index, self.strict)
        x = F.embedding(torch.cat([tokens.reshape(-1), block_tokens.reshape(-1)]), p["embed"])
        angle = lay.positions[:, None].double() * self.inv_freq
        tables = angle.cos().float().contiguous(), angle.sin().float().contiguous()
        for i, kind in enumerate(self.cfg.layers):
            at = f"{i}."
            rows = RmsNorm.apply(x, p[at + "norm1"], self.dtype, self.call).mm(p[at + "in"].t())
            if kind == "A":
                y = self.attention(at, rows, lay, tables)
            else:
                y = self.gdn(at, rows, lay)
            if wanted is not None and i + 1 == len(self.cfg.layers):
                x, y = x.index_select(0, wanted), y.index_select(0, wanted)
            x = self.experts(at, x + y.mm(p[at + "out"].t()).float(), balance)
        return x

    def logits(self, x):
        x = RmsNorm.apply(x, self.p["norm"], self.dtype, self.call)
        return x.mm(self.p["head"].t()).float()
