"""llama.cpp through its C API: logits of every position, greedy continuations.

Uses the ctypes bindings of llama-cpp-python. LLAMA_CPP_LIB_PATH may name a folder with another
build of the shared libraries.
"""

import ctypes

import llama_cpp.llama_cpp as lc
import numpy as np

_quiet = lc.llama_log_callback(lambda level, text, data: None)


class Llama:
    """One model and one context on the CPU, float32 KV cache.

    One thread: the models are small, and spinning workers lose on a busy machine.
    """

    def __init__(self, path, n_ctx=4096, threads=1, loud=False):
        if not loud:
            lc.llama_log_set(_quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        mp = lc.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = lc.llama_model_load_from_file(str(path).encode(), mp)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        cp = lc.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch = n_ctx, n_ctx, 512
        cp.n_threads = cp.n_threads_batch = threads
        cp.type_k = cp.type_v = 0  # GGML_TYPE_F32
        self.ctx = lc.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise RuntimeError(f"llama.cpp makes no context for {path}")
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.n_vocab = lc.llama_vocab_n_tokens(self.vocab)

    def close(self):
        lc.llama_free(self.ctx)
        lc.llama_model_free(self.model)

    def reset(self):
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)

    def feed(self, ids, first):
        """Decode ids at positions first.., return their logits [n, n_vocab]."""
        batch = lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i] = int(t)
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        rc = lc.llama_decode(self.ctx, batch)
        lc.llama_batch_free(batch)
        if rc != 0:
            raise RuntimeError(f"llama_decode: {rc}")
        rows = lc.llama_get_logits(self.ctx)
        return np.ctypeslib.as_array(rows, (len(ids), self.n_vocab)).copy()

    def logits(self, ids, chunk=0):
        """Logits of every position from an empty context, in one batch or in chunks."""
        self.reset()
        step = chunk or len(ids)
        parts = [self.feed(ids[i : i + step], i) for i in range(0, len(ids), step)]
        return np.concatenate(parts)

    def tokenize(self, text):
        raw = text.encode("utf-8")
        room = (ctypes.c_int32 * (len(raw) + 16))()
        n = lc.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, True)
        return list(room[:n])

    def greedy(self, ids, n, stop=True):
        """Up to n more ids by argmax (the lowest among equals), stopping before an end token."""
        row, out, ids = self.logits(ids)[-1], [], list(ids)
        while len(out) < n:
            best = int(np.argmax(row))
            if stop and lc.llama_vocab_is_eog(self.vocab, best):
                break
            out.append(best)
            if len(out) < n:
                row = self.feed([best], len(ids) + len(out) - 1)[-1]
        return out
