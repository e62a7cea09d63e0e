"""Trains clover-tiny on the CPU; resumable, and the schedule may end at any time.

    python3 train.py --out RUN --end 20:05    # until 20:05 UTC; the same command resumes RUN

One process per core; the processes share the weights, average their gradients and each update a
part of the parameters. The learning rate stays constant until --decay minutes before the end and
then falls linearly to --final of it. While the program runs it reads RUN/schedule.json every 20
steps: {"end": "20:10", "lr": 0.0015} replaces the options of these names.
"""

import os

# Many short products of varying shape: keep freed memory and the code generated for each shape.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",
    "LRU_CACHE_CAPACITY": "16384",
}
if __name__ == "__main__" and any(os.environ.get(k) != v for k, v in ENVIRONMENT.items()):
    import sys

    os.environ.update(ENVIRONMENT)
    os.execv(sys.executable, [sys.executable] + sys.argv)

import argparse
import ctypes
import itertools
import json
import math
import multiprocessing
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import world
from export import branch_tensors, load_weights
from model import BLOCK, Config, Model
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
POOL = 1536  # examples that are sorted by length together
MAX_TOKENS = 1024
SAVE_SECONDS = 300
PADDING = 8  # lengths are multiples of it: fewer distinct shapes
COPY_MAX_TOKENS = 160
TASK_IDS = {name: i for i, name in enumerate(list(data.TASKS) + ["talk"])}


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--init", help="exported folder a new run starts from: weights only, the optimizer is new"
    )
    parser.add_argument(
        "--fixed-branch",
        type=float,
        metavar="MIX",
        help="instead of the backward branch of --init one of random values that forgets each row "
        "at the next, weighted by MIX; it stays as it is and the rest learns to live with it",
    )
    parser.add_argument(
        "--skip", type=int, default=0, help="training examples that --init has seen already"
    )
    parser.add_argument("--end", default="", help="UTC time HH:MM at which training stops")
    parser.add_argument(
        "--minutes", type=float, default=100, help="length of the run when --end is not given"
    )
    parser.add_argument(
        "--decay", type=float, default=25, help="minutes of falling learning rate at the end"
    )
    parser.add_argument(
        "--copy",
        type=float,
        default=10,
        help="minutes of the first phase: short examples, copying, next-token loss only",
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--final", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument(
        "--rows", type=int, default=1024, help="rows per batch and process, clean and noisy"
    )
    parser.add_argument("--block-weight", type=float, default=1.5)
    parser.add_argument("--balance", type=float, default=0.01)
    parser.add_argument(
        "--tail-weight",
        type=float,
        default=0.1,
        help="weight of the <|endoftext|> rows that fill the last block",
    )
    parser.add_argument("--decay-weights", type=float, default=0.05)
    parser.add_argument("--keep", default="{}", help="JSON: task -> share of its examples to use")
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--wiring",
        choices=("definition", "shift", "inclusive", "relative"),
        default="definition",
        help="how blocks work, to test that `fourleaf probe` finds it: row i - 1 predicts row i; "
        "the backward scan sees its own row; blocks start where the answer does",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=int, default=50)
    parser.add_argument("--tokenizer", default=os.path.join(HERE, "model", "tokenizer.json"))
    return parser.parse_args()


# ---------------------------------------------------------------- batches


class Encoded:
    """Token ids of one example and the spans [begin, end) of its answers.

    relative: the end of another text stands before it, so long that the last answer, the only one
    with blocks, starts at a multiple of BLOCK. Positions count from each other alone, so these are
    blocks that start where the answer does.
    """

    def __init__(self, example, tokenizer, relative=False):
        self.task, self.ids, self.spans = TASK_IDS[example.task], [], []
        for text, is_answer in example.segments():
            begin = len(self.ids)
            self.ids += tokenizer.encode(text)
            if is_answer:
                self.spans.append((begin, len(self.ids)))
        self.block_spans = self.spans
        if relative:
            self.move(-self.spans[-1][0] % BLOCK, tokenizer)
        self.length = (len(self.ids) + PADDING - 1) // PADDING * PADDING
        self.block_rows = (
            sum((end + BLOCK - 1) // BLOCK - begin // BLOCK for begin, end in self.block_spans)
            * BLOCK
        )

    def move(self, count, tokenizer):
        other = tokenizer.encode(" ".join(world.FILLER))
        end = BLOCK + 7 * len(self.ids) % (len(other) - BLOCK)
        self.ids = other[end - count : end] + self.ids
        self.spans = [(begin + count, end + count) for begin, end in self.spans]
        self.block_spans = self.spans[-1:]


def encoded_pool(stream, tokenizer, copy_phase, keep, rng, relative):
    """keep: task -> share of its examples to use, for tasks that are learnt already."""
    limit = COPY_MAX_TOKENS if copy_phase else MAX_TOKENS
    pool = []
    for example in stream:
        if rng.random() >= keep.get(example.task, 1.0):
            continue
        encoded = Encoded(example, tokenizer, relative)
        if encoded.length <= limit:
            pool.append(encoded)
        if len(pool) == POOL:
            return pool


def batches_of(pool, rows, rng, with_blocks):
    """Groups of examples of like length, about `rows` padded and block rows each, shuffled."""
    groups, group, blocks = [], [], 0
    for example in sorted(pool, key=lambda e: (e.length, rng.random())):
        more = example.block_rows if with_blocks else 0
        if group and (len(group) + 1) * example.length + blocks + more > rows:
            groups.append(group)
            group, blocks = [], 0
        group.append(example)
        blocks += more
    groups.append(group)
    rng.shuffle(groups)
    return groups


def mask_rows(maskable, rng):
    """Which answer rows of a block are masked: all, all after a prefix, or a random share."""
    kind, first = rng.random(), int(np.argmax(maskable))
    if kind < 0.3:
        return maskable
    if kind < 0.5:
        return maskable & (np.arange(BLOCK) >= first + int((BLOCK - first) * rng.random()))
    chosen = maskable & (np.array([rng.random() for _ in range(BLOCK)]) < rng.random())
    return chosen if chosen.any() else maskable


class Batch:
    def __init__(self, group, tokenizer, options, rng, with_blocks):
        length = max(e.length for e in group)
        self.tokens = np.full((len(group), length), tokenizer.end_text)
        next_weight = np.zeros(
            (len(group), length), np.float32
        )  # weight of predicting the token in this column
        blocks = []
        for b, example in enumerate(group):
            self.tokens[b, : len(example.ids)] = example.ids
            for begin, end in example.spans:
                next_weight[b, begin:end] = 1.0
            for begin, end in example.block_spans if with_blocks else ():
                blocks += [
                    self.block(example, b, k, begin, end, tokenizer, options, rng)
                    for k in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK)
                ]
        self.finish(group, next_weight, blocks, options.wiring == "shift")

    @staticmethod
    def block(example, seq, index, begin, end, tokenizer, options, rng):
        """The block as decoding sees it: nothing after the answer's end but <|endoftext|>."""
        column = np.arange(index * BLOCK, (index + 1) * BLOCK)
        target = np.full(BLOCK, tokenizer.end_text)
        known = example.ids[index * BLOCK : min(end, (index + 1) * BLOCK)]
        target[: len(known)] = known
        masked = mask_rows(column >= begin, rng)
        weight = np.where(column < end, 1.0, options.tail_weight) * masked
        return np.where(masked, tokenizer.mask, target), target, weight, seq, index

    def finish(self, group, next_weight, blocks, shift):
        """shift: row i - 1 of a block predicts row i; row 0 is the clean row's before it."""
        length = self.tokens.shape[1]
        seqs, columns = np.nonzero(next_weight[:, 1:])
        task = np.array([e.task for e in group])
        self.next_rows = torch.from_numpy(seqs * length + columns)
        self.next_target = torch.from_numpy(self.tokens[seqs, columns + 1])
        self.next_task = torch.from_numpy(task[seqs])
        self.tokens = torch.from_numpy(self.tokens)
        stack = lambda i, shape: (
            np.stack([b[i] for b in blocks]) if blocks else np.zeros(shape, np.int64)
        )
        weight = stack(2, (0, BLOCK)).astype(np.float32)
        if shift:
            weight[:, 0] = 0
        target, which = stack(1, (0, BLOCK)), np.nonzero(weight)
        self.block_tokens = torch.from_numpy(stack(0, (0, BLOCK)))
        self.block_seq, self.block_index = (
            torch.tensor([b[i] for b in blocks], dtype=torch.long) for i in (3, 4)
        )
        self.block_rows = torch.from_numpy(which[0] * BLOCK + which[1] - int(shift))
        self.block_target = torch.from_numpy(target[which])
        self.block_weight = torch.from_numpy(weight[which])
        self.block_task = (
            torch.from_numpy(task)[self.block_seq][torch.from_numpy(which[0])]
            if blocks
            else self.block_rows
        )


class BatchSource:
    """This process's share of the two training streams; every procs-th example."""

    def __init__(self, options, tokenizer, rank, done):
        self.options, self.tokenizer, self.rank, self.done = options, tokenizer, rank, dict(done)
        self.rng = random.Random(options.seed * 7919 + rank + 31 * sum(done.values()))
        self.queue, self.streams, self.phase = [], {}, None

    def stream(self, copy_phase):
        key = "copy" if copy_phase else "main"
        if key not in self.streams:
            start = self.done[key] * self.options.procs + self.rank
            self.streams[key] = itertools.islice(
                data.training_stream(copy_phase=copy_phase), start, None, self.options.procs
            )
        for example in self.streams[key]:
            self.done[key] += 1
            yield example

    def next(self, copy_phase):
        if not self.queue or self.phase != copy_phase:
            self.phase = copy_phase
            stream, keep = self.stream(copy_phase), json.loads(self.options.keep)
            relative = self.options.wiring == "relative"
            pool = encoded_pool(stream, self.tokenizer, copy_phase, keep, self.rng, relative)
            self.queue = batches_of(pool, self.options.rows, self.rng, not copy_phase)
        return Batch(self.queue.pop(), self.tokenizer, self.options, self.rng, not copy_phase)


# ---------------------------------------------------------------- one step


class Meter:
    """Sums over one period of the log."""

    def __init__(self):
        self.loss = torch.zeros(2, len(TASK_IDS))
        self.count = torch.zeros(2, len(TASK_IDS))
        self.extra = dict.fromkeys(("balance", "busiest", "idlest", "norm", "tail"), 0.0)
        self.steps = self.rows = 0
        self.began, self.cpu = time.time(), time.process_time()

    def speed(self, procs):
        seconds = time.time() - self.began
        cpu = (time.process_time() - self.cpu) / seconds
        return f"{procs * self.rows / seconds:.0f} rows/s, cpu {cpu:.2f}"

    def add(self, kind, losses, tasks):
        self.loss[kind].index_add_(0, tasks, losses)
        self.count[kind].index_add_(0, tasks, torch.ones_like(losses))

    def report(self):
        mean = self.loss.sum(1) / self.count.sum(1).clamp(min=1)
        extra = " ".join(f"{k} {v / self.steps:.3f}" for k, v in self.extra.items())
        ratio = lambda kind, i: self.loss[kind, i] / max(1, self.count[kind, i])
        by_task = " ".join(
            f"{name} {ratio(0, i):.3f}/{ratio(1, i):.3f}"
            for name, i in TASK_IDS.items()
            if self.count[0, i]
        )
        return f"next {mean[0]:.4f} block {mean[1]:.4f} {extra}\n    {by_task}"


def loss_of(model, batch, options, meter):
    balance = []
    rows = torch.cat([batch.next_rows, batch.tokens.numel() + batch.block_rows])
    x = model.forward(
        batch.tokens, batch.block_tokens, batch.block_seq, batch.block_index, balance, rows
    )
    losses = F.cross_entropy(
        model.logits(x), torch.cat([batch.next_target, batch.block_target]), reduction="none"
    )
    next_loss, block_loss = losses.split([len(batch.next_rows), len(batch.block_rows)])
    balance_loss = sum(term for term, _ in balance) / len(balance)
    total = next_loss.mean() + options.balance * balance_loss
    if len(block_loss):
        total = (
            total
            + options.block_weight
            * (block_loss * batch.block_weight).sum()
            / batch.block_weight.sum()
        )
    with torch.no_grad():
        real = batch.block_weight == 1
        meter.add(0, next_loss.detach(), batch.next_task)
        meter.add(1, block_loss.detach()[real], batch.block_task[real])
        meter.extra["balance"] += float(balance_loss)
        meter.extra["busiest"] += float(max(load.max() for _, load in balance))
        meter.extra["idlest"] += float(min(load.min() for _, load in balance))
        meter.extra["tail"] += (
            float(block_loss.detach()[~real].mean()) if bool((~real).any()) else 0.0
        )
    return total


class Optimizer:
    """AdamW over the shared parameters; each process updates its share."""

    beta1, beta2, clip = 0.9, 0.98, 1.0

    def __init__(self, model, options, shared, barrier):
        self.model, self.options, self.shared, self.barrier = model, options, shared, barrier
        self.groups = ((model.matrices, options.decay_weights), (model.vectors, 0.0))

    def share(self, group):
        """This process's part of a group, and the head of the kernels' arguments for it."""
        procs, rank = self.options.procs, self.model.rank
        part = slice(group.size * rank // procs, group.size * (rank + 1) // procs)
        grads = (ctypes.c_void_p * procs)(*(grad[part].data_ptr() for grad in group.grads))
        wide = int(group.grads[0].dtype == torch.float32)
        return part, (ctypes.c_long(part.stop - part.start), procs, wide, grads)

    def norm(self):
        """Norm of the gradient averaged over the processes."""
        self.barrier.wait()
        squares = [
            self.model.call("grad_square", *self.share(group)[1]) for group, _ in self.groups
        ]
        self.shared["squares"][self.model.rank] = sum(squares)
        self.barrier.wait()
        return math.sqrt(float(self.shared["squares"].sum()))

    def step(self, number, lr):
        norm, real = self.norm(), ctypes.c_float
        if math.isfinite(norm):
            scale = min(1.0, self.clip / (norm + 1e-6)) / self.options.procs
            correct = [1 / (1 - beta**number) for beta in (self.beta1, self.beta2)]
            rates = [real(x) for x in (scale, lr, self.beta1, self.beta2, *correct)]
            for group, decay in self.groups:
                part, head = self.share(group)
                copy = None if group.copy is group.master else group.copy[part]
                state = (group.master[part], copy, group.mean[part], group.var[part])
                self.model.call("adamw", *head, *state, *rates, real(decay))
        self.barrier.wait()
        return norm


# ---------------------------------------------------------------- schedule and checkpoints


def utc_today(clock):
    hour, minute = map(int, clock.split(":"))
    now = time.time()
    return now - now % 86400 + hour * 3600 + minute * 60


class Schedule:
    def __init__(self, options, trained_before):
        self.options, self.before, self.start = options, trained_before, time.time()
        self.end = self.start + options.minutes * 60 - trained_before
        self.refresh()

    def refresh(self):
        path = os.path.join(self.options.out, "schedule.json")
        if os.path.exists(path):
            try:
                with open(path, encoding="utf-8") as file:
                    vars(self.options).update(json.load(file))
            except ValueError:  # it is being written; the next look will do
                pass
        if self.options.end:
            self.end = utc_today(self.options.end)

    def trained(self):
        """Seconds of training so far, earlier runs included."""
        return self.before + time.time() - self.start

    def copy_phase(self):
        return self.trained() < self.options.copy * 60

    def rate(self, step):
        left = (self.end - time.time()) / max(1e-9, self.options.decay * 60)
        level = self.options.final + (1 - self.options.final) * min(1.0, max(0.0, left))
        return self.options.lr * level * min(1.0, (step + 1) / self.options.warmup)

    def over(self):
        return time.time() >= self.end


def checkpoint_path(out):
    return os.path.join(out, "checkpoint.pt")


def load_checkpoint(options, model):
    """(step, trained seconds, consumed examples, totals) of an earlier run, or of none."""
    if not os.path.exists(checkpoint_path(options.out)):
        if options.init:
            load_weights(model, options.init, options.fixed_branch)
        done = {"copy": 0, "main": options.skip // options.procs}
        return 0, 0.0, done, {"rows": 0, "answers": 0}
    state = torch.load(checkpoint_path(options.out))
    model.load(state)
    for name, group in (("matrices", model.matrices), ("vectors", model.vectors)):
        group.mean.copy_(state["moments"][name][0])
        group.var.copy_(state["moments"][name][1])
    return state["step"], state["trained"], state["done"], state["totals"]


# ---------------------------------------------------------------- the processes


class Worker:
    """One process: its share of the examples. Rank 0 also decides, logs and saves."""

    def __init__(self, rank, options, model, shared, barrier, resumed):
        model.attach(rank)
        self.rank, self.options, self.model, self.shared = rank, options, model, shared
        self.barrier, (self.number, trained, done, self.totals) = barrier, resumed
        self.source = BatchSource(options, Tokenizer.load(options.tokenizer), rank, done)
        self.schedule = Schedule(options, trained)
        self.optimizer, self.meter = Optimizer(model, options, shared, barrier), Meter()
        self.unmoved = []
        if options.fixed_branch is not None:
            self.unmoved = branch_tensors({n: t.grad for n, t in model.p.items()}, model.cfg)

    def orders(self):
        """(learning rate, copy phase, over) as rank 0 decides them."""
        if self.rank == 0:
            if self.number % 20 == 0:
                self.schedule.refresh()
            plan = self.schedule
            orders = [plan.rate(self.number), plan.copy_phase(), plan.over()]
            self.shared["orders"][:] = torch.tensor(orders, dtype=torch.float64)
        self.barrier.wait()
        return self.shared["orders"].tolist()

    def step(self, lr, copy_phase):
        batch = self.source.next(bool(copy_phase))
        self.model.zero_grads()
        loss_of(self.model, batch, self.options, self.meter).backward()
        for grad in self.unmoved:
            grad.zero_()
        self.number += 1
        self.meter.extra["norm"] += self.optimizer.step(self.number, lr)
        self.meter.steps += 1
        rows = batch.tokens.numel() + batch.block_tokens.numel()
        self.meter.rows += rows
        self.totals["rows"] += rows * self.options.procs
        self.totals["answers"] += len(batch.next_rows) * self.options.procs

    def log(self, lr):
        if self.rank == 0:
            print(
                f"{time.strftime('%H:%M:%S')} step {self.number} {self.schedule.trained():.0f} s, "
                f"{self.meter.speed(self.options.procs)}, {self.totals['rows'] / 1e6:.2f} M rows, "
                f"{sum(self.source.done.values())} examples, lr {lr:.5f} {self.meter.report()}",
                flush=True,
            )
        self.meter = Meter()

    def save(self):
        groups = {"matrices": self.model.matrices, "vectors": self.model.vectors}
        state = dict(
            self.model.state(),
            step=self.number,
            trained=self.schedule.trained(),
            done=self.source.done,
            totals=self.totals,
            moments={name: (group.mean, group.var) for name, group in groups.items()},
        )
        scratch = checkpoint_path(self.options.out) + ".new"
        torch.save(state, scratch)
        os.replace(scratch, checkpoint_path(self.options.out))

    def run(self):
        saved = time.time()
        while True:
            lr, copy_phase, over = self.orders()
            if over:
                break
            self.step(lr, copy_phase)
            if self.number % self.options.log == 0:
                self.log(lr)
            if self.rank == 0 and time.time() - saved > SAVE_SECONDS:
                self.save()
                saved = time.time()
        if self.rank == 0:
            self.save()
            print(
                f"done: {self.number} steps, {self.schedule.trained():.0f} s, {self.totals}, "
                f"examples per process {self.source.done}",
                flush=True,
            )


def work(rank, options, *rest):
    torch.set_num_threads(1)
    torch.manual_seed(options.seed + rank)
    Worker(rank, options, *rest).run()


def main():
    options = parse_options()
    os.makedirs(options.out, exist_ok=True)
    torch.set_num_threads(1)
    model = Model(
        Config(experts=options.experts, width=options.width),
        options.seed,
        procs=options.procs,
        strict=int(options.wiring != "inclusive"),
    )
    resumed = load_checkpoint(options, model)
    print("parameters", model.count(), "step", resumed[0], flush=True)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(options.procs)
    shared = {
        "squares": torch.zeros(options.procs, dtype=torch.float64).share_memory_(),
        "orders": torch.zeros(3, dtype=torch.float64).share_memory_(),
    }
    workers = [
        context.Process(target=work, args=(rank, options, model, shared, barrier, resumed))
        for rank in range(options.procs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
