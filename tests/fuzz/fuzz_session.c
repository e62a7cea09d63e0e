/* A session file. Byte 0 says what is put right, so that damage behind a checksum is reached as
 * well: 1 sizes and options of the model, 2 bulk cut or filled to the length that the head asks
 * for, 4 both checksums. The rest is the file from its 9th byte on. What is restored must be
 * usable: a text follows. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/decode/session.h"
#include "tests/fuzz/tiny.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { HEAD = 96, MOST = 8 << 20 };

typedef struct image {
    uint8_t *p;
    size_t n;
} image;

static uint64_t field(const image *f, size_t at)
{
    uint64_t v;
    memcpy(&v, f->p + at, sizeof(v));
    return v;
}

static void set(image *f, size_t at, uint64_t v, size_t bytes) { memcpy(f->p + at, &v, bytes); }

static uint32_t kv_layers(const fl_state *st)
{
    uint32_t n = 0;
    for (int i = 0; i < st->n_layer; i++) n += st->k[i] != NULL;
    return n;
}

/* Bytes of the front, as far as they lie in the file. */
static size_t front(const image *f)
{
    const uint64_t n = field(f, 32), rungs = field(f, 40), note = field(f, 48);
    if (n > MOST || rungs > MOST || note > MOST) return 0;
    const uint64_t bytes = 4 * n + 16 * rungs + note;
    return bytes < f->n - HEAD ? (size_t)bytes : f->n - HEAD;
}

static void mend(image *f, const fl_engine *e, uint8_t what)
{
    const fl_state *st = &e->state;
    if (what & 1) {
        set(f, 8, 2, 4);
        set(f, 12, st->kv_type, 4);
        set(f, 24, 0, 4);
        set(f, 28, kv_layers(st), 4);
        set(f, 56, fl_state_kv_row_bytes(st), 8);
        set(f, 64, st->gdn_bytes, 8);
        set(f, 72, fl_index_digest(e->model->index), 8);
    }
    if (what & 2) {
        const uint64_t n = field(f, 32), rungs = field(f, 40), note = field(f, 48);
        if (n <= 200 && rungs <= 4 && note <= 1000) {
            const uint64_t size = HEAD + 4 * n + 16 * rungs + note +
                                  2 * kv_layers(st) * n * fl_state_kv_row_bytes(st) +
                                  (rungs + 1) * st->gdn_bytes;
            if (size <= MOST) f->n = size;
        }
    }
    if (what & 4) {
        const size_t bytes = front(f);
        set(f, 80, XXH3_64bits(f->p + HEAD + bytes, f->n - HEAD - bytes), 8);
        set(f, 88, 0, 8);
        set(f, 88, XXH3_64bits_withSeed(f->p + HEAD, bytes, XXH3_64bits(f->p, HEAD)), 8);
    }
}

static void use(const fl_session *s, fl_engine *e, fl_generator *g)
{
    fl_gen_result r;
    fl_gen_config c;
    int32_t prompt[128];
    if (fl_session_tokens(s) > 100) return;
    const int64_t n = fl_session_tokens(s);
    memcpy(prompt, e->state.ids, (size_t)n * sizeof(*prompt));
    prompt[n] = 1;
    fl_gen_config_init(&c, e->model);
    c.mode = FL_GEN_AR;
    c.max_tokens = 2;
    const fl_status st = fl_generate(g, &c, prompt, n + 1, &r, NULL);
    fl_fuzz_need(st == FL_OK || st == FL_E_NAN);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static uint8_t file[MOST];
    fl_generator *g;
    fl_engine *e = fl_fuzz_engine(&g);
    fl_session *s = NULL;
    if (n < 1 || n - 1 > sizeof(file) - 8) return 0;
    image f = {file, n - 1 + 8};
    memset(file, 0, sizeof(file));
    memcpy(file, "FLSESSIO", 8);
    memcpy(file + 8, p + 1, n - 1);
    if (f.n >= HEAD) mend(&f, e, p[0]);
    const int fd = memfd_create("session", 0);
    fl_fuzz_need(fd >= 0 && write(fd, f.p, f.n) == (ssize_t)f.n);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fl_session_open(&s, path, NULL) == FL_OK) {
        size_t n_note;
        fl_fuzz_need(strlen(fl_session_note(s, &n_note)) <= n_note);
        if (fl_session_restore(s, g, field(&f, 16), NULL) == FL_OK) use(s, e, g);
    }
    fl_session_close(&s);
    close(fd);
    return 0;
}
