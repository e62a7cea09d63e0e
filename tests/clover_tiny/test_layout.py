"""The training layout in float32 equals reference.py, and the kernels' gradients equal autograd's.

    python3 test_layout.py
"""

import os
import tempfile
import unittest

import torch
import torch.nn.functional as F

import data
import export
import model as training
import reference
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))


def lively_model():
    """Random float32 weights with larger norms, mixes and logits than the initial ones."""
    model = training.Model(training.Config(), seed=3, dtype=torch.float32)
    generator = torch.Generator().manual_seed(4)
    model.vectors.master.add_(torch.randn(model.vectors.size, generator=generator) * 0.05)
    model.p["head"].data.mul_(20)
    return model


def exported(model):
    folder = tempfile.mkdtemp()
    export.export(model.state(), folder, exact=True)
    return reference.Reference(folder)


class Layout(unittest.TestCase):
    def test_equals_reference(self):
        model, coder = lively_model(), Tokenizer.load(os.path.join(HERE, "model", "tokenizer.json"))
        plain = exported(model)
        texts = [coder.encode(e.prompt() + e.completion()) for e in data.heldout_examples(1)][-4:-1]
        length = (max(len(t) for t in texts) + 7) // 8 * 8
        tokens = torch.full((len(texts), length), coder.end_text)
        for row, ids in enumerate(texts):
            tokens[row, : len(ids)] = torch.tensor(ids)
        seqs, index = torch.tensor([0, 1, 2, 1]), torch.tensor([1, 0, 0, length // 32 - 1])
        blocks = torch.stack([tokens[s, k * 32 : k * 32 + 32].clone() for s, k in zip(seqs, index)])
        blocks[:, 7:20] = coder.mask
        with torch.no_grad():
            logits = model.logits(model.forward(tokens, blocks, seqs, index))
            for m in range(len(blocks)):
                seq, k, state = int(seqs[m]), int(index[m]), reference.State(plain)
                if k:
                    clean = plain.logits(plain.clean(tokens[seq, : k * 32].tolist(), state))
                    self.close(logits[seq * length : seq * length + k * 32], clean)
                block = plain.logits(plain.block(blocks[m].tolist(), state))
                begin = tokens.numel() + 32 * m
                self.close(logits[begin : begin + 32], block)

    def test_weights_come_back(self):
        """load_weights undoes export, in the float32 masters and in the working copy."""
        model, folder = lively_model(), tempfile.mkdtemp()
        export.export(model.state(), folder, exact=True)
        back = training.Model(training.Config(), seed=9)
        export.load_weights(back, folder)
        self.assertTrue(torch.equal(back.matrices.master, model.matrices.master))
        self.assertTrue(torch.equal(back.vectors.master, model.vectors.master))
        self.assertTrue(torch.equal(back.matrices.copy, model.matrices.master.bfloat16()))

    def close(self, found, wanted):
        self.assertLess(float((found - wanted).abs().max()), 1e-4 * float(wanted.abs().max()))


class Gradients(unittest.TestCase):
    """GdnMixer against autograd through the recurrence in float64."""

    def reference_mixer(
        self, cfg, lay, rows, conv, a_log, dt, back_conv, back_a, back_dt, mix, norm
    ):
        scan = reference.Reference.scan
        nv, d = cfg.value_heads, cfg.head_dim
        u, z, a, b, a2, b2 = rows.split([cfg.channels, cfg.value_dim] + [nv] * 4, 1)
        g, g2 = -a_log.exp() * F.softplus(a + dt), -back_a.exp() * F.softplus(a2 + back_dt)

        def convolved(extended, taps, n):
            mixed = F.silu(sum(extended[t : t + n] * taps[:, t] for t in range(4)))
            q, k, v = mixed.split([cfg.key_dim, cfg.key_dim, cfg.value_dim], 1)
            heads = lambda x: reference.l2_norm(x.reshape(n, cfg.key_heads, d))
            double = lambda x: x.repeat_interleave(nv // cfg.key_heads, 1)
            return double(heads(q)) * d**-0.5, double(heads(k)), v.reshape(n, nv, d)

        zeros, nothing, length = u.new_zeros(3, cfg.channels), u.new_zeros(nv, d, d), lay.length
        out, states = [], {}
        for s in range(lay.batch):
            span, memory = slice(s * length, (s + 1) * length), nothing
            q, k, v = convolved(torch.cat([zeros, u[span]]), conv, length)
            for c in range((length + 31) // 32):
                part = slice(c * 32, min(length, c * 32 + 32))
                states[s, c] = memory
                o, memory = scan(
                    q[part], k[part], v[part], g[span][part], b[span][part].sigmoid(), memory, False
                )
                out.append(o)
        for m in range(lay.blocks):
            s, c = int(lay.block_seq[m]), int(lay.block_index[m])
            span, at = slice(lay.clean + 32 * m, lay.clean + 32 * m + 32), s * length + c * 32
            tail = u[at - 3 : at] if c else zeros
            q, k, v = convolved(torch.cat([tail, u[span]]), conv, 32)
            o, _ = scan(q, k, v, g[span], b[span].sigmoid(), states[s, c], False)
            q, k, v = convolved(torch.cat([zeros, u[span].flip(0)]), back_conv, 32)
            gates = g2[span].flip(0), b2[span].sigmoid().flip(0)
            r, _ = scan(q, k, v, *gates, nothing, bool(lay.back_part.strict))
            out.append(o + mix[:, None] * r.flip(0))
        o = torch.cat(out)
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6) * norm
        return o.reshape(len(rows), -1) * F.silu(z)

    def test_mixer(self):
        for strict in (1, 0):
            self.check_mixer(strict)

    def check_mixer(self, strict):
        torch.manual_seed(0)
        model = training.Model(training.Config(), dtype=torch.float32)
        cfg, lay = model.cfg, training.Layout(
            2, 56, torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1]), strict
        )
        names = ("conv", "a_log", "dt", "back_conv", "back_a_log", "back_dt", "mix", "gdn_norm")
        values = [torch.randn(lay.rows, cfg.gdn_width)]
        values += [model.p[f"0.{name}"].detach().clone() for name in names]
        ours = [v.clone().requires_grad_() for v in values]
        theirs = [v.double().requires_grad_() for v in values]
        found = training.GdnMixer.apply(*ours, lay, cfg, model.call)
        wanted = self.reference_mixer(cfg, lay, *theirs)
        top = torch.randn_like(found)
        (found * top).sum().backward()
        (wanted * top.double()).sum().backward()
        self.assertLess(float((found - wanted).abs().max()), 1e-5 * float(wanted.abs().max()))
        for a, b in zip(ours, theirs):
            self.assertLess(float((a.grad - b.grad).abs().max()), 1e-5 * float(b.grad.abs().max()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
