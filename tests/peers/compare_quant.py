"""Our quantizer against llama.cpp's Q4_K_M at equal bytes, on clover-tiny and on its outlier copy.

usage: compare_quant.py WORKDIR LLAMA_BIN [--models tiny,rescaled] [--seeds N,N...] [--act f32|law]
                        [--ours ARGS]... [--heldout FILE] [--raw FILE]

The rival is llama-quantize Q4_K_M, plain and with llama-imatrix's file; ours is `fourleaf quantize`
with what --ours says, in which {size}, {importance}, {imatrix} and {sensitivity} are filled in.
{size} is stepped until the shared tensors take the rival's bytes within 0.5 %, from below where
that can be. Calibration text: one draw of training examples a seed, the same for both sides. What
is measured: `fourleaf eval` on held-out text against the float weights. Both sides' tensors are put
into one file whose other tensors, those of the backward branch, are BF16.
Wants at most 0.75 of the rival with imatrix and 0.5 of the plain one for three figures: the mean KL
divergence on the causal path and on block passes over all rows of the text, and the NLL that masked
tokens of the answers lose. Not that of the prompts: nobody can predict them, the float weights are
surely wrong there, and any damage to them lowers it. Where the rival's loss is not above twice its
standard error nothing can be compared: a line says so, and ours must not be above twice its own.
--raw appends each measurement to FILE as it is taken, one JSON object a line.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import calibration
import fourleaf
import gguf_file
import rescale

TINY = Path(__file__).resolve().parent.parent / "clover_tiny"
OURS = "--size {size} --importance {importance} --sensitivity {sensitivity}"
RIVAL, RIVAL_IMATRIX = "llama.cpp Q4_K_M", "llama.cpp Q4_K_M, imatrix"
SLACK, WANT_IMATRIX, WANT_PLAIN = 0.005, 0.75, 0.5
N_CTX = 512  # of llama-imatrix and of ours


# KL divergences of all rows; NLL that masked tokens of answers lose, its standard error; the causal
# KL of answers.
Row = namedtuple("Row", "size kl kl_masked nll nll_error kl_answers")


def llama(tool, *args):
    done = subprocess.run(
        [str(tool), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=3600
    )
    if done.returncode:
        raise SystemExit(f"{tool}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")


class Subject:
    """A model with float weights, the files made of it, and how they are measured."""

    def __init__(self, name, folder, kind, a):
        self.name, self.folder, self.a = name, folder, a
        self.bin, self.work = a.llama_bin, a.work
        self.frame = self.make("frame.gguf", "--type", "bf16")
        self.stock = self.path("stock.gguf")
        if not self.stock.exists():
            ours = self.make("stock-ours.gguf", "--type", kind, "--arch", "qwen35moe")
            gguf_file.realign(ours, self.stock)
            ours.unlink()
        self.reference = {rows: self.path(f"{rows}.logits") for rows in ("all", "answers")}
        for rows, file in self.reference.items():
            if not file.exists():
                self.evaluate(folder, rows, "f32", "--save-logits", file)

    def path(self, name):
        return self.work / f"{self.name}-{name}"

    def make(self, name, *options):
        out = self.path(name)
        if not out.exists():
            fourleaf.run("quantize", self.folder, out, *options)
        return out

    def evaluate(self, model, rows, act, *options):
        options += ("--act", act, "--kv", "f32") + (("--all",) if rows == "all" else ())
        return fourleaf.run("eval", model, self.a.heldout, *options, timeout=7200)

    def measure(self, donor, said, seed=None):
        """A Row of figures of a file, made as `said` tells from the seed's text."""
        whole, got = self.path("measured.gguf"), {}
        size = gguf_file.exchange(self.frame, donor, whole)
        for rows, file in self.reference.items():
            report = self.evaluate(whole, rows, self.a.act, "--against", file, "--json")
            got[rows] = json.loads(report)
        whole.unlink()
        masked = got["answers"]["masked"]
        row = Row(
            size,
            got["all"]["causal"]["kl"],
            got["all"]["masked"]["kl"],
            masked["delta_nll"],
            masked["delta_nll_error"],
            got["answers"]["causal"]["kl"],
        )
        if self.a.raw:
            with open(self.a.raw, "a", encoding="utf-8") as raw:
                what = {"model": self.name, "file": said, "seed": seed, "act": self.a.act}
                print(json.dumps(what | row._asdict()), file=raw)
        return row

    def rival(self, imatrix=None, seed=None):
        out = self.path("rival.gguf")
        known = ("--imatrix", imatrix) if imatrix else ()
        llama(self.bin / "llama-quantize", *known, self.stock, out, "Q4_K_M", 2)
        return self.measure(out, RIVAL_IMATRIX if imatrix else RIVAL, seed)

    def imatrix(self, text, seed):
        out = self.path(f"imatrix-{seed}.gguf")
        if not out.exists():
            where = ("-m", self.stock, "-f", f"{text}.txt", "-o", out, "--parse-special", "-t", 2)
            llama(self.bin / "llama-imatrix", *where, "-c", N_CTX, "-b", N_CTX, "--no-ppl")
        return out

    def learned(self, command, text, seed):
        """The file that a command of ours makes from the text."""
        out = self.path(f"{command}-{seed}")
        if not out.exists():
            fourleaf.run(command, self.folder, f"{text}.jsonl", "-o", out, timeout=7200)
        return out

    def ours(self, template, text, seed, want):
        """Measures our file of at most `want` shared bytes."""
        out, fields = self.path("ours.gguf"), {}
        for command in ("importance", "sensitivity"):
            if "{" + command + "}" in template:
                fields[command] = self.learned(command, text, seed)
        if "{imatrix}" in template:
            fields["imatrix"] = self.imatrix(text, seed)
        size = want
        for _ in range(6):
            args = shlex.split(template.format(size=size, **fields))
            out.unlink(missing_ok=True)
            fourleaf.run("quantize", self.folder, out, "--arch", "qwen35moe", *args, timeout=7200)
            got = gguf_file.shared_bytes(out)
            if "{size}" not in template or want * (1 - SLACK) <= got <= want:
                break
            size += want - got - (want // 2000 if got > want else 0)
        return self.measure(out, template, seed)


def spread(values):
    mean = statistics.mean(values)
    return (
        f"{mean:.3e} ({min(values):.2e} to {max(values):.2e})" if len(values) > 1 else f"{mean:.3e}"
    )


def judge(figure, ours, rival, want):
    """(ratio of means as text, ratios by seed as text, verdict) of one figure."""
    o, r = ([getattr(row, figure) for row in rows] for rows in (ours, rival))
    by_seed = " ".join(f"{a / b:.2f}" for a, b in zip(o, r))
    if figure == "nll":
        lost, error = statistics.mean(r), statistics.mean(row.nll_error for row in rival)
        if lost <= 2 * error:
            mine = statistics.mean(row.nll_error for row in ours)
            good = statistics.mean(o) <= 2 * mine
            return "the rival loses nothing", by_seed, "PASS" if good else "FAIL"
    ratio = sum(o) / sum(r)
    return f"{ratio:.3f}", by_seed, "PASS" if ratio <= want else "FAIL"


def table(subject, plain, calibrated, arms):
    """Prints the figures of one model; True when the first arm meets the targets."""
    print(f"\n{subject.name}: act {subject.a.act}, mean of seeds (least to largest)\n")
    print("| file | shared bytes | KL causal | KL masked | NLL lost | its error | KL of answers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    lines = {RIVAL: [plain], RIVAL_IMATRIX: calibrated} | arms
    for name, rows in lines.items():
        size, kl, masked, nll, error, answers = zip(*rows)
        print(
            f"| {name} | {max(size):,} | {spread(kl)} | {spread(masked)} | {spread(nll)} "
            f"| {statistics.mean(error):.1e} | {spread(answers)} |"
        )
    good = True
    print("\n| ours against | figure | ratio of means | by seed | wanted | |")
    print("| --- | --- | --- | --- | --- | --- |")
    for i, (name, rows) in enumerate(arms.items()):
        off = max(abs(row.size / plain.size - 1) for row in rows)
        said = "PASS" if off <= SLACK else "FAIL"
        print(f"| {name} | bytes | {off:.2%} apart | | {SLACK:.1%} | {said} |")
        good &= off <= SLACK or i > 0
        rivals = {"imatrix": (calibrated, WANT_IMATRIX), "plain": ([plain] * len(rows), WANT_PLAIN)}
        for against, (rival, want) in rivals.items():
            for figure in ("kl", "kl_masked", "nll"):
                ratio, by_seed, said = judge(figure, rows, rival, want)
                good &= said == "PASS" or i > 0
                print(f"| {name}, {against} | {figure} | {ratio} | {by_seed} | {want} | {said} |")
    sys.stdout.flush()
    return good


def compare(subject, seeds, templates):
    plain, calibrated, arms = subject.rival(), [], {t: [] for t in templates}
    for seed in seeds:
        text = subject.work / f"calibration-{seed}"
        if not Path(f"{text}.txt").exists():
            calibration.write(text, seed, subject.a.characters)
        calibrated.append(subject.rival(subject.imatrix(text, seed), seed))
        for template in templates:
            arms[template].append(subject.ours(template, text, seed, plain.size))
    return table(subject, plain, calibrated, arms)


def main(a):
    a.work.mkdir(parents=True, exist_ok=True)
    good = True
    for name in a.models.split(","):
        folder, kind = TINY / "model", "bf16"
        if name == "rescaled":
            folder, kind = a.work / "rescaled", "f32"
            if not folder.exists():
                rescale.rescale(TINY / "model", folder, a.sigma, 1)
        subject = Subject(name, folder, kind, a)
        good &= compare(subject, [int(s) for s in a.seeds.split(",")], a.ours or [OURS])
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--models", default="tiny,rescaled")
    parser.add_argument("--seeds", default="101,102,103,104,105")
    parser.add_argument("--act", default="f32", choices=("f32", "law"))
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--characters", type=int, default=250_000)
    parser.add_argument("--heldout", type=Path, default=TINY / "heldout.jsonl")
    parser.add_argument("--ours", action="append")
    parser.add_argument("--raw", type=Path)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main(parser.parse_args()))
