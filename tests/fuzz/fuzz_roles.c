/* A role map. Bytes 0 to 2: tokens of the prompt, mode and the place of a change; then message
 * starts, one byte each as signed steps from the one before (so they run wild), 0x80 takes 8 bytes
 * as they are. A map that is taken must not change the text: the prompt, the prompt with a change,
 * and that one afresh. */
#include <stdint.h>
#include <string.h>

#include "tests/fuzz/tiny.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { MAX_PROMPT = 60, OUT = 4 };

static int64_t read_starts(const uint8_t *p, size_t n, int64_t *start, int64_t most)
{
    int64_t count = 0, at = 0;
    for (size_t i = 0; i < n && count < most; i++) {
        if (p[i] == 0x80 && n - i > 8) {
            memcpy(&at, p + i + 1, 8);
            i += 8;
        } else {
            at = (int64_t)((uint64_t)at + (uint64_t)(int64_t)(int8_t)p[i]);
        }
        start[count++] = at;
    }
    return count;
}

static fl_status text(fl_generator *g, const fl_gen_config *c, const int32_t *prompt, int64_t n,
                      int32_t *out)
{
    fl_gen_result r;
    const fl_status st = fl_generate(g, c, prompt, n, &r, NULL);
    if (st != FL_OK) return st;
    fl_fuzz_need(r.n_generated == OUT && r.n_reused <= n);
    memcpy(out, r.ids, OUT * sizeof(*out));
    return FL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    int64_t start[64];
    int32_t prompt[MAX_PROMPT], first[OUT], again[OUT], fresh[OUT];
    fl_generator *g;
    fl_gen_config c;
    if (n < 3) return 0;
    fl_engine *e = fl_fuzz_engine(&g);
    const int64_t n_prompt = 1 + p[0] % MAX_PROMPT;
    for (int64_t i = 0; i < n_prompt; i++) prompt[i] = 'a' + (int32_t)(i * 7 % 26);
    fl_gen_config_init(&c, e->model);
    c.mode = p[1] & 1 ? FL_GEN_BLOCK : FL_GEN_AR;
    c.max_tokens = OUT;
    c.ignore_eos = true;
    c.roles.has_head = p[1] & 2;
    c.roles.start = start;
    c.roles.n = read_starts(p + 3, n - 3, start, 64);
    const fl_status st = text(g, &c, prompt, n_prompt, first);
    fl_fuzz_need(st == FL_OK || st == FL_E_ARG);
    if (st != FL_OK) return 0;
    prompt[p[2] % n_prompt] = 'A';
    fl_fuzz_need(text(g, &c, prompt, n_prompt, again) == FL_OK);
    fl_state_reset(&e->state);
    fl_fuzz_need(text(g, &c, prompt, n_prompt, fresh) == FL_OK);
    fl_fuzz_need(memcmp(again, fresh, sizeof(again)) == 0);

    /* The tokens of the map's bytes as a prompt: whatever they are, the map that is found is one
     * that is taken. */
    fl_roles r;
    int64_t *found = NULL;
    int32_t wild[64];
    const int64_t n_wild = (int64_t)(n / 4 < 64 ? n / 4 : 64);
    memcpy(wild, p, (size_t)n_wild * 4);
    fl_fuzz_need(fl_roles_find(&r, &found, e->model->tokenizer, wild, n_wild, NULL) == FL_OK);
    fl_fuzz_need(n_wild == 0 || fl_roles_check(&r, n_wild, NULL) == FL_OK);
    free(found);
    return 0;
}
