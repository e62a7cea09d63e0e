"""Our files in llama.cpp, and its answers against ours.

usage: compare_llama.py MODEL PROMPTS.jsonl [WORKDIR]

MODEL is a safetensors folder (clover-tiny). Three checks:
  full     `quantize --arch qwen35moe` at F32 loads there; greedy continuations of 64 tokens are
           equal on at least 9 of 10 prompts
  q4       the Q4_K file loads there; mean KL divergence between both next-token distributions
           below 0.01 over 2,000 positions or more
  text     `run --mode ar --temp 0` prints what llama.cpp's greedy tokens say
"""

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import fourleaf
from llama_driver import Llama

N_PROMPTS, N_TOKENS, WANT_EQUAL = 10, 64, 9
N_POSITIONS, MAX_KL = 2000, 0.01
EXACT = ("--act", "f32", "--kv", "f32")
LAW = ("--act", "law", "--kv", "f32")
# Greedy means the bare argmax on both sides, whatever defaults a model brings.
PLAIN = ("--temp", "0", "--presence", "0", "--frequency", "0", "--repetition", "1")


def quantize(model, out, kind):
    """A GGUF of the base model alone, as stock readers know it."""
    out.unlink(missing_ok=True)
    fourleaf.run("quantize", model, out, "--arch", "qwen35moe", "--type", kind)
    return out


def read_prompts(path, tok):
    """[(prompt text, prompt ids, ids of prompt and wanted answer)]."""
    rows = [
        json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line
    ]
    out = []
    for r in rows:
        text = r["prompt"]
        out.append((text, tok.encode(text).ids, tok.encode(text + r.get("completion", "")).ids))
    return out


def greedy_equal(path, prompts):
    """How many of the prompts continue alike.

    One pass of ours over llama.cpp's continuation tells: rows do not depend on each other's
    company, so our greedy text is theirs exactly when every argmax is.
    """
    llama, equal = Llama(path), 0
    for text, ids, _ in prompts:
        more = llama.greedy(ids, N_TOKENS, stop=False)
        best = fourleaf.logits(path, ids + more[:-1], *EXACT)[len(ids) - 1 :].argmax(axis=1)
        same = int((best == np.array(more)).cumprod().sum())
        equal += same == len(more)
        print(f"  greedy {same:3} of {len(more)} tokens alike: {text[-50:]!r}")
    llama.close()
    return equal


def divergence(path, texts, options):
    """(mean KL(theirs | ours), positions, share of equal argmax, KL of theirs, of ours from float).

    The last two are from our logits with float activations: which of the two rounds less.
    """
    llama, kl, n, alike = Llama(path), np.zeros(3), 0, 0
    for ids in texts:
        theirs, ours = llama.logits(ids), fourleaf.logits(path, ids, *options)
        width = min(theirs.shape[1], ours.shape[1])
        p, q = fourleaf.log_softmax(theirs[:, :width]), fourleaf.log_softmax(ours[:, :width])
        exact = q
        if options != EXACT:
            exact = fourleaf.log_softmax(fourleaf.logits(path, ids, *EXACT)[:, :width])
        for i, (a, b) in enumerate(((p, q), (exact, p), (exact, q))):
            kl[i] += float((np.exp(a) * (a - b)).sum())
        alike += int((p.argmax(1) == q.argmax(1)).sum())
        n += len(ids)
        if n >= N_POSITIONS:
            break
    llama.close()
    return kl[0] / n, n, alike / n, kl[1] / n, kl[2] / n


def text_equal(path, questions, tok):
    """How many answers of `run` are the text of llama.cpp's greedy tokens."""
    llama, equal = Llama(path), 0
    for q in questions:
        ids = tok.encode(
            f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ).ids
        want = tok.decode(llama.greedy(ids, N_TOKENS)).strip()
        options = ("--mode", "ar", "--think", "off", "--max-tokens", N_TOKENS)
        got = fourleaf.run("run", path, "-p", q, *options, *PLAIN, *EXACT).decode("utf-8").strip()
        equal += got == want
        print(f"  {q!r}: {got!r}{'' if got == want else f', llama.cpp {want!r}'}")
    llama.close()
    return equal


def main(model, prompts_path, work):
    work.mkdir(parents=True, exist_ok=True)
    tok = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    prompts = read_prompts(prompts_path, tok)
    full = quantize(model, work / "full.gguf", "f32")
    q4 = quantize(model, work / "q4.gguf", "q4_k")
    step = max(1, len(prompts) // N_PROMPTS)
    equal = greedy_equal(full, prompts[::step][:N_PROMPTS])
    print(f"llama.cpp, F32: greedy {N_TOKENS} tokens equal on {equal} of {N_PROMPTS} prompts")
    texts = [ids for _, _, ids in prompts]
    kl_full, n, same, _, _ = divergence(full, texts, EXACT)
    print(f"llama.cpp, F32: mean KL {kl_full:.2e} over {n} positions, argmax equal {same:.2%}")
    kl, n, same, theirs, ours = divergence(q4, texts, LAW)
    print(f"llama.cpp, Q4_K: mean KL {kl:.2e} over {n} positions, argmax equal {same:.2%}")
    print(f"  from float activations: llama.cpp {theirs:.2e}, ours {ours:.2e}")
    questions = [
        "What is the capital of Australia?",
        "What is the capital of France?",
        "What is 3 + 4?",
    ]
    said = text_equal(full, questions, tok)
    print(f"llama.cpp, F32: printed answers equal on {said} of {len(questions)}")
    good = equal >= WANT_EQUAL and n >= N_POSITIONS and kl < MAX_KL and said == len(questions)
    print("llama.cpp: " + ("within bounds" if good else "FAILED"))
    return 0 if good else 1


if __name__ == "__main__":
    where = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("build/peers/llama")
    sys.exit(main(sys.argv[1], sys.argv[2], where))
