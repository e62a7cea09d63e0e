"""The autograd functions of the training layout: everything between the matrix products, in C."""

import ctypes
import os
import subprocess

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build", "clover_tiny")
SOURCES = ("kernels_gdn.c", "kernels_rows.c")
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-shared", "-fPIC")
BLOCK = 32


class Kernels:
    """The compiled kernels; wide = float32 activations instead of bfloat16."""

    def __init__(self, wide):
        self.library = ctypes.CDLL(self.build(wide))
        self.library.grad_square.restype = ctypes.c_double

    @staticmethod
    def build(wide):
        sources = [os.path.join(HERE, name) for name in SOURCES]
        target = os.path.join(BUILD, "kernels_f32.so" if wide else "kernels_bf16.so")
        newest = max(os.path.getmtime(path) for path in sources)
        if not os.path.exists(target) or os.path.getmtime(target) < newest:
            os.makedirs(BUILD, exist_ok=True)
            scratch = f"{target}.{os.getpid()}"
            define = ["-DACT_F32"] if wide else []
            subprocess.run(["gcc", *FLAGS, *define, *sources, "-o", scratch, "-lm"], check=True)
            os.replace(scratch, target)
        return target

    def __call__(self, name, *args):
        """Calls a kernel. Tensors (views too) become the address of their first element."""
        return getattr(self.library, name)(*map(self.argument, args))

    @staticmethod
    def argument(value):
        if value is None:
            return ctypes.c_void_p(0)
        return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else value


class Part:
    """Sequences of equal length that one scan goes through, and where their rows lie."""

    def __init__(self, rows, length, first, tail, start, reverse=0, strict=0, own_states=0):
        self.rows = rows  # slice of all rows
        self.count, self.length = len(first), length
        ints = lambda values: torch.as_tensor(values, dtype=torch.int32).contiguous()
        self.first = ints(first)  # first row of each sequence
        self.tail = ints(tail)  # first of the three rows before it, or -1
        self.start = ints(start)  # saved state to start from, or -1
        self.reverse, self.strict, self.own_states = reverse, strict, own_states


class Layout:
    """Which rows belong together in one batch of `batch` sequences and the blocks of them.

    strict: the backward scan of a block reads a row's state before the row enters it.
    """

    def __init__(self, batch, length, block_seq, block_index, strict=1):
        self.batch, self.length, self.blocks = batch, length, len(block_seq)
        self.clean = batch * length
        self.rows = self.clean + self.blocks * BLOCK
        self.block_seq, self.block_index = block_seq, block_index
        begin = block_seq * length + block_index * BLOCK
        self.chunks = (length + BLOCK - 1) // BLOCK
        slot = block_seq * self.chunks + block_index
        later, none = block_index > 0, torch.full_like(begin, -1)
        first = [self.clean + m * BLOCK for m in range(self.blocks)]
        clean_none, noisy = [-1] * batch, slice(self.clean, self.rows)
        self.clean_part = Part(
            slice(0, self.clean),
            length,
            [b * length for b in range(batch)],
            clean_none,
            clean_none,
            own_states=1,
        )
        self.block_part = Part(
            noisy,
            BLOCK,
            first,
            torch.where(later, begin - 3, none),
            torch.where(later, slot, none),
        )
        self.back_part = Part(noisy, BLOCK, first, none, none, reverse=1, strict=strict)
        own = (block_index[:, None] * BLOCK + torch.arange(BLOCK)).reshape(-1)
        self.positions = torch.cat([torch.arange(length).repeat(batch), own])


class Scan:
    """Conv and delta rule of one part, forward and backward."""

    def __init__(self, part, cfg, call):
        self.part, self.cfg, self.call = part, cfg, call

    def shape(self):
        return self.part.count, self.part.length, self.cfg.key_heads, self.cfg.value_heads

    def forward(self, rows, conv, g, beta, states):
        part, cfg, n = self.part, self.cfg, self.part.count * self.part.length
        q, k = (torch.empty(n, cfg.key_heads, cfg.head_dim) for _ in range(2))
        v, o, resid = (torch.empty(n, cfg.value_heads, cfg.head_dim) for _ in range(3))
        where = (part.first, part.tail)
        self.call(
            "conv_forward", *self.shape(), cfg.gdn_width, part.reverse, *where, rows, conv, q, k, v
        )
        modes = (part.reverse, part.strict, part.own_states)
        self.call(
            "gdn_forward", *self.shape(), *modes, part.start, q, k, v, g, beta, states, o, resid
        )
        self.saved = (q, k, v, g, beta, resid)
        return o

    def backward(self, saved, rows, conv, states, d_o, d_states, du, d_conv):
        """Adds to d_states, du and d_conv; returns the gradients of g and beta."""
        part, cfg = self.part, self.cfg
        q, k, v, g, beta, resid = saved
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.empty_like(v)
        dg, dbeta = torch.empty_like(g), torch.empty_like(beta)
        modes = (part.reverse, part.strict, part.own_states)
        inputs, outputs = (q, k, g, beta, states, resid), (d_states, dq, dk, dv, dg, dbeta)
        self.call("gdn_backward", *self.shape(), *modes, part.start, *inputs, d_o, *outputs)
        where = (part.first, part.tail)
        self.call(
            *("conv_backward", *self.shape(), cfg.gdn_width, part.reverse, *where),
            *(rows, conv, dq, dk, dv, du, d_conv),
        )
        return dg, dbeta


class GdnMixer(torch.autograd.Function):
    """Conv, gates, both scans and the gated norm: joint projection rows -> rows for out_proj."""

    @staticmethod
    def forward(
        ctx, rows, conv, a_log, dt, back_conv, back_a_log, back_dt, mix, norm, lay, cfg, call
    ):
        nv, d, n, ld = cfg.value_heads, cfg.head_dim, lay.rows, cfg.gdn_width
        a = cfg.channels + cfg.value_dim
        states = torch.empty(lay.batch * lay.chunks, nv, d, d)
        g, beta = torch.empty(n, nv), torch.empty(n, nv)
        call("gates_forward", n, nv, ld, rows[:, a:], rows[:, a + nv :], a_log, dt, g, beta)
        scans = [Scan(lay.clean_part, cfg, call)]
        clean = lay.clean_part.rows
        outs, r = [scans[0].forward(rows, conv, g[clean], beta[clean], states)], None
        if lay.blocks:
            scans += [Scan(lay.block_part, cfg, call), Scan(lay.back_part, cfg, call)]
            noisy = lay.block_part.rows
            outs.append(scans[1].forward(rows, conv, g[noisy], beta[noisy], states))
            back, m = rows[noisy, a + 2 * nv :], n - lay.clean
            bg, bbeta = torch.empty(m, nv), torch.empty(m, nv)
            call("gates_forward", m, nv, ld, back, back[:, nv:], back_a_log, back_dt, bg, bbeta)
            r = scans[2].forward(rows, back_conv, bg, bbeta, None)
            call("mix_forward", m, nv, mix, r, outs[1])
        o, y = torch.cat(outs), torch.empty(n, nv * d, dtype=rows.dtype)
        call("gated_norm_forward", n, nv, ld, o, rows[:, cfg.channels :], norm, y)
        weights = (conv, a_log, dt, back_conv, back_a_log, back_dt, mix, norm)
        ctx.save_for_backward(rows, *weights, states, g, beta, o, r)
        ctx.scans, ctx.lay, ctx.cfg, ctx.call = scans, lay, cfg, call
        return y

    @staticmethod
    def backward(ctx, dy):
        rows, *weights, states, g, beta, o, r = ctx.saved_tensors
        conv, a_log, dt, back_conv, back_a_log, back_dt, mix, norm = weights
        lay, cfg, call, scans = ctx.lay, ctx.cfg, ctx.call, ctx.scans
        nv, n, ld, z = cfg.value_heads, lay.rows, cfg.gdn_width, cfg.channels
        a = z + cfg.value_dim
        d_rows, du, d_o = torch.empty_like(rows), torch.zeros(n, z), torch.empty_like(o)
        d_rows[:, a:].zero_()
        grads = [torch.zeros_like(w) for w in weights]
        d_conv, d_a_log, d_dt, d_back_conv, d_back_a_log, d_back_dt, d_mix, d_norm = grads
        d_states, dg, dbeta = torch.zeros_like(states), torch.empty_like(g), torch.empty_like(g)
        dy, to = dy.contiguous(), (d_o, d_rows[:, z:], d_norm)
        call("gated_norm_backward", n, nv, ld, o, rows[:, z:], norm, dy, *to)
        if lay.blocks:
            noisy, m, dr = lay.block_part.rows, n - lay.clean, torch.empty_like(r)
            call("mix_backward", m, nv, mix, r, d_o[noisy], dr, d_mix)
            saved = scans[2].saved
            dbg, dbbeta = scans[2].backward(saved, rows, back_conv, None, dr, None, du, d_back_conv)
            back, d_back = rows[noisy, a + 2 * nv :], d_rows[noisy, a + 2 * nv :]
            call(
                *("gates_backward", m, nv, ld, back, back_a_log, back_dt, *saved[3:5], dbg, dbbeta),
                *(d_back, d_back[:, nv:], d_back_a_log, d_back_dt),
            )
            dg[noisy], dbeta[noisy] = scans[1].backward(
                scans[1].saved, rows, conv, states, d_o[noisy], d_states, du, d_conv
            )
        clean = lay.clean_part.rows
        dg[clean], dbeta[clean] = scans[0].backward(
            scans[0].saved, rows, conv, states, d_o[clean], d_states, du, d_conv
        )
        call(
            *("gates_backward", n, nv, ld, rows[:, a:], a_log, dt, g, beta, dg, dbeta),
            *(d_rows[:, a:], d_rows[:, a + nv :], d_a_log, d_dt),
        )
        call("to_act", n, z, ld, du, d_rows)
        return d_rows, *grads, None, None, None


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, dtype, call):
        y = torch.empty(x.shape, dtype=dtype)
        call("rms_forward", *x.shape, x, w, y)
        ctx.save_for_backward(x, w)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        ctx.call("rms_backward", *x.shape, x, w, dy.contiguous(), dx, dw)
        return dx, dw, None, None


class AttnSplit(torch.autograd.Function):
    """Joint projection rows -> normed, roped q and k, plain v, gate; dense [rows][heads][dim]."""

    @staticmethod
    def forward(ctx, rows, q_norm, k_norm, cosine, sine, cfg, call):
        n, d, nh, nkv, ld = len(rows), cfg.attn_dim, cfg.q_heads, cfg.kv_heads, cfg.attn_width
        k_at, v_at = 2 * nh * d, (2 * nh + nkv) * d
        q = torch.empty(n, nh, d, dtype=rows.dtype)
        k = torch.empty(n, nkv, d, dtype=rows.dtype)
        table = (cosine, sine)
        call("qk_forward", n, nh, d, cfg.rotary, ld, 2 * d, rows, q_norm, *table, q)
        call("qk_forward", n, nkv, d, cfg.rotary, ld, d, rows[:, k_at:], k_norm, *table, k)
        v = rows[:, v_at:].reshape(n, nkv, d).contiguous()
        gate = rows[:, :k_at].reshape(n, nh, 2 * d)[:, :, d:].contiguous()
        ctx.save_for_backward(rows, q_norm, k_norm, cosine, sine)
        ctx.cfg, ctx.call = cfg, call
        return q, k, v, gate

    @staticmethod
    def backward(ctx, dq, dk, dv, d_gate):
        rows, q_norm, k_norm, *table = ctx.saved_tensors
        cfg, call = ctx.cfg, ctx.call
        n, d, nh, nkv, ld = len(rows), cfg.attn_dim, cfg.q_heads, cfg.kv_heads, cfg.attn_width
        k_at, v_at = 2 * nh * d, (2 * nh + nkv) * d
        d_rows = torch.empty_like(rows)
        d_q_norm, d_k_norm = torch.zeros_like(q_norm), torch.zeros_like(k_norm)
        top = (dq.contiguous(), d_rows, d_q_norm)
        call("qk_backward", n, nh, d, cfg.rotary, ld, 2 * d, rows, q_norm, *table, *top)
        top = (dk.contiguous(), d_rows[:, k_at:], d_k_norm)
        call("qk_backward", n, nkv, d, cfg.rotary, ld, d, rows[:, k_at:], k_norm, *table, *top)
        d_rows[:, v_at:] = dv.reshape(n, -1)
        d_rows[:, :k_at].view(n, nh, 2 * d)[:, :, d:] = d_gate
        return d_rows, d_q_norm, d_k_norm, None, None, None, None


class OutGate(torch.autograd.Function):
    """o * sigmoid(gate), both dense."""

    @staticmethod
    def forward(ctx, o, gate, call):
        o, y = o.contiguous(), torch.empty(o.shape, dtype=o.dtype)
        n, heads, dim = o.shape
        call("out_gate_forward", n, heads, dim, heads * dim, dim, o, gate, y)
        ctx.save_for_backward(o, gate)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx, dy):
        o, gate = ctx.saved_tensors
        d_o, d_gate = torch.empty_like(o), torch.empty_like(gate)
        n, heads, dim = o.shape
        to = (dy.contiguous(), d_o, d_gate)
        ctx.call("out_gate_backward", n, heads, dim, heads * dim, dim, o, gate, *to)
        return d_o, d_gate, None


class Experts(torch.autograd.Function):
    """x + the chosen experts' outputs. Weight gradients go straight into the flat gradient."""

    @staticmethod
    def forward(ctx, x, h, weight, gate_up, down, route, call):
        n, width = h.shape
        bounds, inner = route.begin.tolist(), down.shape[2]
        total = bounds[-1]
        new = lambda columns: torch.empty(total, columns, dtype=h.dtype)
        inputs, hidden, act, out = new(width), new(2 * inner), new(inner), new(width)
        call("moe_gather", total, width, h, route.source, inputs)
        spans = [(e, s, t) for e, (s, t) in enumerate(zip(bounds, bounds[1:])) if t > s]
        for e, s, t in spans:
            torch.mm(inputs[s:t], gate_up[e].t(), out=hidden[s:t])
        call("swiglu_forward", total, inner, hidden, act)
        for e, s, t in spans:
            torch.mm(act[s:t], down[e].t(), out=out[s:t])
        weight, y = weight.contiguous(), x.clone()
        call("moe_combine", n, weight.shape[1], width, out, route.place, weight, y)
        ctx.save_for_backward(inputs, hidden, act, out, weight, gate_up, down, route.place)
        ctx.spans, ctx.grads, ctx.call = spans, (gate_up.grad, down.grad), call
        return y

    @staticmethod
    def backward(ctx, dy):
        inputs, hidden, act, out, weight, gate_up, down, place = ctx.saved_tensors
        (d_gate_up, d_down), call, (n, slots) = ctx.grads, ctx.call, weight.shape
        (total, width), dy = inputs.shape, dy.contiguous()
        d_out, d_weight = torch.zeros_like(out), torch.empty_like(weight)
        call("moe_combine_backward", n, slots, width, out, place, weight, dy, d_out, d_weight)
        d_act, d_hidden = torch.empty_like(act), torch.empty_like(hidden)
        d_inputs = torch.empty_like(inputs)
        if len(ctx.spans) < len(gate_up):  # an expert without rows has no gradient
            d_gate_up.zero_()
            d_down.zero_()
        for e, s, t in ctx.spans:
            torch.mm(d_out[s:t], down[e], out=d_act[s:t])
            torch.mm(d_out[s:t].t(), act[s:t], out=d_down[e])
        call("swiglu_backward", total, act.shape[1], hidden, d_act, d_hidden)
        for e, s, t in ctx.spans:
            torch.mm(d_hidden[s:t], gate_up[e], out=d_inputs[s:t])
            torch.mm(d_hidden[s:t].t(), inputs[s:t], out=d_gate_up[e])
        dh = torch.zeros(n, width)
        call("moe_combine", n, slots, width, d_inputs, place, None, dh)
        return dy, dh.to(inputs.dtype), d_weight, None, None, None, None
