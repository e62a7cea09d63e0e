#include "runtime/tools/measure.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/options.h"
#include "runtime/model/chat.h"

/* Requests that any chat model takes, and whose kind clover-tiny was trained for as well: facts,
 * JSON, a short explanation. How much a pass gives depends on the text, so none of them is made
 * up of repetitions. */
static const char *const requests[] = {
    "What are the capitals of France, Japan and Egypt?",
    "Dispatch: 1. turn on the fan; 2. call Anna; 3. close gate 7; 4. report to Elena at 08:30; "
    "5. send 12 tons of glass to Helsinki.",
    "Explain sleep.",
};

enum {
    N_REQUESTS = sizeof requests / sizeof *requests,
    MAX_TOKENS = 64, /* of an answer */
    TRIES = 6,       /* of a pass */
    BEFORE = 32      /* tokens in front of it */
};

typedef struct measurement {
    fl_engine *e;
    fl_generator *g;
    const fl_measure_config *c;
    fl_measured *out;
    uint64_t start_ns;
    int32_t *prompt[N_REQUESTS];
    size_t n_prompt[N_REQUESTS];
    int32_t *text; /* [FL_MEASURE_CONTEXT or a chunk] prompts and answers, over and over */
    int64_t n_text;
} measurement;

static double seconds_since(uint64_t t0) { return (double)(fl_clock_ns() - t0) * 1e-9; }

static bool out_of_time(const measurement *m) { return seconds_since(m->start_ns) > m->c->seconds; }

static void tell(const measurement *m, const char *part)
{
    if (m->c->progress) m->c->progress(m->c->arg, part);
}

/* ---- ways of decoding ---- */

static fl_status encode(measurement *m, fl_err *err)
{
    const fl_model *model = m->e->model;
    if (!model->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s holds no tokenizer: put tokenizer.json beside the weights",
                       fl_source_paths(model->src)[0]);
    for (int i = 0; i < N_REQUESTS; i++)
        FL_TRY(fl_chat_encode_simple(NULL, requests[i], m->c->think, model->tokenizer,
                                     &m->prompt[i], &m->n_prompt[i], err));
    return FL_OK;
}

/* Prompts and answers become the text that passes are tried on. */
static void keep_text(measurement *m, const int32_t *ids, int64_t n, int64_t room)
{
    for (int64_t i = 0; i < n && m->n_text < room; i++) m->text[m->n_text++] = ids[i];
}

static fl_status answer(measurement *m, int request, fl_gen_mode mode, fl_gen_result *r,
                        fl_err *err)
{
    fl_gen_config c = *m->c->gen;
    char part[64];
    snprintf(part, sizeof part, "request %d of %d, mode %s", request + 1, N_REQUESTS,
             fl_gen_mode_name(mode));
    tell(m, part);
    c.mode = mode;
    c.max_tokens = MAX_TOKENS;
    c.draft_always = true; /* what drafts are worth, not how soon they are given up */
    return fl_generate(m->g, &c, m->prompt[request], (int64_t)m->n_prompt[request], r, err);
}

static void count(fl_measured_mode *t, const fl_gen_result *r, int64_t block)
{
    t->tokens += r->n_generated;
    t->rows += r->clean_passes + (r->denoise_passes + r->fused_passes) * block + r->held_passes +
               r->drafted;
    t->steps += r->clean_passes;
    t->block_passes += r->denoise_passes - r->fused_passes;
    t->fused_passes += r->fused_passes;
    t->held_passes += r->held_passes;
    t->draft_steps += r->draft_steps;
    t->blocks += r->blocks;
    t->drafted += r->drafted;
    t->accepted += r->accepted;
}

static fl_status answer_all(measurement *m, int request, int64_t room, fl_err *err)
{
    for (int mode = FL_GEN_AR; mode < FL_GEN_MODES; mode++) {
        fl_gen_result r;
        if (mode == FL_GEN_BLOCK && !m->c->block) continue;
        FL_TRY(answer(m, request, (fl_gen_mode)mode, &r, err));
        count(&m->out->mode[mode], &r, m->e->params.block_size);
        if (mode != FL_GEN_AR) continue;
        keep_text(m, m->prompt[request], (int64_t)m->n_prompt[request], room);
        keep_text(m, r.ids, r.n_generated, room);
    }
    m->out->n_requests++;
    return FL_OK;
}

/* ---- passes ---- */

typedef enum pass { PASS_STEP, PASS_BLOCK, PASS_FUSED, PASS_HELD, PASS_DRAFT, PASS_PREFILL } pass;

/* `rows` clean, held or masked rows; a fused pass has as many of both. */
static fl_status run_pass(measurement *m, pass kind, const int32_t *x, int rows, fl_err *err)
{
    fl_engine *e = m->e;
    const fl_clover *sw = &m->c->gen->clover;
    int32_t masks[FL_MAX_BLOCK];
    int row[FL_MAX_BLOCK] = {-1}, n_logits = 1;
    const float *logits = NULL;
    if (kind != PASS_STEP && kind != PASS_PREFILL) {
        n_logits = rows;
        for (int i = 0; i < rows; i++) {
            masks[i] = sw->mask_id;
            row[i] = kind == PASS_FUSED ? rows + i : i;
        }
    }
    switch (kind) {
    case PASS_STEP:
    case PASS_PREFILL: FL_TRY(fl_forward_clean(e, x, rows, err)); break;
    case PASS_BLOCK: FL_TRY(fl_forward_denoise(e, masks, rows, sw, err)); break;
    case PASS_FUSED: FL_TRY(fl_forward_fused(e, x, rows, masks, rows, sw, err)); break;
    case PASS_HELD: FL_TRY(fl_forward_held(e, x, rows, err)); break;
    case PASS_DRAFT: return fl_forward_draft(e, x[0], 0, &logits, err);
    }
    return fl_forward_logits(e, row, n_logits, &logits, err);
}

static void list_pass(fl_measured *out, pass kind, int rows)
{
    static const char *const name[] = {"step", "block", "fused", "held", "draft", "prefill"};
    assert(out->n_passes < FL_MEASURE_PASSES);
    out->pass[out->n_passes++] = (fl_measured_pass){name[kind], rows, 0.0};
}

/* Try `number` of a pass behind the same beginning, each on another part of the text. */
static fl_status try_pass(measurement *m, pass kind, int rows, int number, fl_measured_pass *out,
                          fl_err *err)
{
    const int before = kind == PASS_PREFILL ? 0 : BEFORE;
    const int32_t *x = m->text + before + (m->n_text - before - rows) * number / TRIES;
    fl_state_reset(&m->e->state);
    if (before > 0) FL_TRY(fl_forward_clean(m->e, m->text, before, err));
    const uint64_t t0 = fl_clock_ns();
    FL_TRY(run_pass(m, kind, x, rows, err));
    const double s = seconds_since(t0);
    if (number == 0 || s < out->seconds) out->seconds = s;
    return FL_OK;
}

/* All kinds in turns, so that what else the machine does meets them all. */
static fl_status time_passes(measurement *m, fl_err *err)
{
    fl_measured *out = m->out;
    const fl_clover *sw = &m->c->gen->clover;
    pass kind[FL_MEASURE_PASSES];
    kind[out->n_passes] = PASS_STEP;
    list_pass(out, PASS_STEP, 1);
    for (int k = PASS_BLOCK; k <= PASS_FUSED && sw->has_blocks; k++) {
        kind[out->n_passes] = (pass)k;
        list_pass(out, (pass)k, sw->block_size);
    }
    const int held = m->e->params.held_rows;
    for (int rows = 1; rows < held;) {
        rows = 2 * rows < held ? 2 * rows : held;
        kind[out->n_passes] = PASS_HELD;
        list_pass(out, PASS_HELD, rows);
    }
    if (m->e->params.mtp) {
        kind[out->n_passes] = PASS_DRAFT;
        list_pass(out, PASS_DRAFT, 1);
    }
    kind[out->n_passes] = PASS_PREFILL;
    list_pass(out, PASS_PREFILL, (int)m->e->params.chunk);
    for (int number = 0; number < TRIES && (number == 0 || !out_of_time(m)); number++) {
        char part[64];
        snprintf(part, sizeof part, "passes, try %d of %d", number + 1, TRIES);
        tell(m, part);
        for (int i = 0; i < out->n_passes; i++)
            FL_TRY(try_pass(m, kind[i], out->pass[i].rows, number, &out->pass[i], err));
    }
    return FL_OK;
}

/* ---- all of it ---- */

/* Repeats the text until a chunk of it is there. */
static void fill_text(measurement *m, int64_t room)
{
    const int64_t n = m->n_text;
    while (m->n_text < room) {
        m->text[m->n_text] = m->text[m->n_text - n];
        m->n_text++;
    }
}

fl_status fl_measure(fl_engine *e, fl_generator *g, const fl_measure_config *c, fl_measured *out,
                     fl_err *err)
{
    measurement m = {.e = e, .g = g, .c = c, .out = out, .start_ns = fl_clock_ns()};
    const fl_engine_params *p = &e->params;
    /* A fused pass has twice a block's rows. */
    const int64_t blocks = BEFORE + 2 * (int64_t)p->block_size;
    const int64_t need = blocks > FL_MEASURE_CONTEXT ? blocks : FL_MEASURE_CONTEXT;
    const int64_t room = p->chunk > need ? p->chunk : need;
    fl_status st = FL_OK;
    assert(p->held_rows >= 2);
    *out = (fl_measured){0};
    if (p->n_ctx < need)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "measuring takes a context of %lld tokens, this has %lld: raise --ctx",
                       (long long)need, (long long)p->n_ctx);
    m.text = malloc((size_t)room * sizeof *m.text);
    if (!m.text) return FL_FAIL(err, FL_E_NOMEM, 0, "measuring: out of memory");
    FL_GO(encode(&m, err));
    for (int i = 0; i < N_REQUESTS && (i == 0 || !out_of_time(&m)); i++)
        FL_GO(answer_all(&m, i, room, err));
    fill_text(&m, room);
    FL_GO(time_passes(&m, err));
out:
    fl_state_reset(&e->state);
    for (int i = 0; i < N_REQUESTS; i++) free(m.prompt[i]);
    free(m.text);
    return st;
}

/* ---- what follows from it ---- */

int64_t fl_measured_passes(const fl_measured_mode *t)
{
    return t->steps + t->block_passes + t->fused_passes + t->held_passes;
}

/* Seconds of a pass of so many rows: between two measured ones of its kind on the line through
 * them. */
static double pass_seconds(const fl_measured *m, const char *kind, double rows)
{
    const fl_measured_pass *below = NULL;
    for (int i = 0; i < m->n_passes; i++) {
        const fl_measured_pass *p = &m->pass[i];
        if (strcmp(p->kind, kind) != 0) continue;
        if (rows <= p->rows && !below) return p->seconds;
        if (rows <= p->rows)
            return below->seconds +
                   (p->seconds - below->seconds) * (rows - below->rows) / (p->rows - below->rows);
        below = p;
    }
    return below ? below->seconds : 0.0;
}

double fl_measured_rate(const fl_measured *m, fl_gen_mode mode)
{
    const fl_measured_mode *t = &m->mode[mode];
    double s = (double)t->steps * pass_seconds(m, "step", 1) +
               (double)t->block_passes * pass_seconds(m, "block", 1) +
               (double)t->fused_passes * pass_seconds(m, "fused", 1) +
               (double)t->draft_steps * pass_seconds(m, "draft", 1);
    if (t->held_passes > 0) {
        const double n = (double)t->held_passes;
        s += n * pass_seconds(m, "held", 1.0 + (double)t->drafted / n);
    }
    return s > 0.0 ? (double)t->tokens / s : 0.0;
}

static fl_json *mode_json(const fl_measured_mode *t)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "tokens", t->tokens);
    fl_json_set_int(j, "passes", fl_measured_passes(t));
    fl_json_set_int(j, "rows", t->rows);
    if (t->blocks > 0) fl_json_set_int(j, "blocks", t->blocks);
    if (t->held_passes > 0) {
        fl_json_set_int(j, "drafts", t->held_passes);
        fl_json_set_int(j, "drafted", t->drafted);
        fl_json_set_int(j, "accepted", t->accepted);
    }
    return j;
}

static fl_json *pass_json(const fl_measured_pass *p)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_str(j, "kind", p->kind);
    fl_json_set_int(j, "rows", p->rows);
    fl_json_set_num(j, "seconds", p->seconds);
    return j;
}

fl_json *fl_measured_json(const fl_measured *m)
{
    fl_json *j = fl_json_new_object(), *rates = fl_json_new_object();
    fl_json *modes = fl_json_new_object(), *passes = fl_json_new_array();
    for (int i = FL_GEN_AR; i < FL_GEN_MODES; i++) {
        const char *name = fl_gen_mode_name((fl_gen_mode)i);
        if (m->mode[i].tokens == 0) continue;
        fl_json_set_num(rates, name, fl_measured_rate(m, (fl_gen_mode)i));
        fl_json_set(modes, name, mode_json(&m->mode[i]));
    }
    for (int i = 0; i < m->n_passes; i++) fl_json_append(passes, pass_json(&m->pass[i]));
    fl_json_set_str(j, "version", fl_version);
    fl_json_set_int(j, "requests", m->n_requests);
    fl_json_set(j, "tokens_per_s", rates);
    fl_json_set(j, "modes", modes);
    fl_json_set(j, "passes", passes);
    return j;
}
