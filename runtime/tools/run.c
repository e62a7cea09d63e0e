#include "runtime/tools/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/model/chat.h"
#include "runtime/tools/setup.h"

enum { MAX_PROMPT_BYTES = 16 << 20 };

/* Bytes that grow. */
typedef struct text {
    char *p;
    size_t n, room;
} text;

static bool text_put(text *t, const char *p, size_t n)
{
    if (t->n + n + 1 > t->room) {
        const size_t room = (t->n + n + 1) * 2;
        char *grown = realloc(t->p, room);
        if (!grown) return false;
        t->p = grown;
        t->room = room;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
    return true;
}

/* ---- prompt ---- */

static fl_status read_stdin(text *t, fl_err *err)
{
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof(buf), stdin)) > 0) {
        if (t->n + n > MAX_PROMPT_BYTES)
            return FL_FAIL(err, FL_E_ARG, 0, "the prompt on standard input exceeds %d bytes",
                           MAX_PROMPT_BYTES);
        if (!text_put(t, buf, n)) return FL_FAIL(err, FL_E_NOMEM, 0, "prompt: out of memory");
    }
    if (ferror(stdin)) return FL_FAIL(err, FL_E_IO, errno, "standard input cannot be read");
    return FL_OK;
}

static fl_status read_prompt(const fl_options *o, text *t, fl_err *err)
{
    if (o->prompt && o->prompt_file)
        return FL_FAIL(err, FL_E_ARG, 0, "give the prompt once: -p TEXT or -f FILE");
    if (o->prompt)
        return text_put(t, o->prompt, strlen(o->prompt))
                   ? FL_OK
                   : FL_FAIL(err, FL_E_NOMEM, 0, "prompt: out of memory");
    if (!o->prompt_file || strcmp(o->prompt_file, "-") == 0) return read_stdin(t, err);
    uint64_t n = 0;
    FL_TRY(fl_file_load(o->prompt_file, MAX_PROMPT_BYTES, &t->p, &n, err));
    t->n = (size_t)n;
    return FL_OK;
}

/* The prompt's token ids; *ids is malloc'ed. */
static fl_status encode_prompt(const fl_options *o, const fl_model *m, int32_t **ids, size_t *n,
                               fl_err *err)
{
    text user = {0};
    char *chat = NULL;
    size_t n_chat = 0;
    fl_status st = FL_OK;
    if (!m->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s holds no tokenizer: put tokenizer.json beside the weights", o->args[0]);
    FL_GO(read_prompt(o, &user, err));
    if (o->raw) {
        st = fl_tokenizer_encode(m->tokenizer, user.p ? user.p : "", user.n, true, ids, n, err);
        goto out;
    }
    FL_GO(
        fl_chat_render_simple(o->system, user.p ? user.p : "", o->think != 0, &chat, &n_chat, err));
    st = fl_tokenizer_encode(m->tokenizer, chat, n_chat, true, ids, n, err);
out:
    free(user.p);
    free(chat);
    return st;
}

/* ---- output ---- */

typedef struct sink {
    text all;
    bool stream; /* to standard output as it comes */
    bool failed;
} sink;

static bool take_text(void *arg, const char *p, size_t n)
{
    sink *s = arg;
    if (s->stream && (fwrite(p, 1, n, stdout) != n || fflush(stdout) != 0)) s->failed = true;
    if (!text_put(&s->all, p, n)) s->failed = true;
    return !s->failed;
}

static double rate(double n, double seconds) { return seconds > 0.0 ? n / seconds : 0.0; }

/* Generated tokens per pass, commits of blocks left out. */
static double tokens_per_pass(const fl_gen_result *r)
{
    const int64_t passes = r->mode == FL_GEN_BLOCK
                               ? r->denoise_passes
                               : r->clean_passes + r->denoise_passes + r->held_passes + 1;
    return rate((double)r->n_generated, (double)passes);
}

static void print_start(const fl_engine *e)
{
    char fixed[32], res[32], slots[32], cap[32];
    const fl_plan *p = &e->plan;
    fprintf(stderr,
            "cpu %s, %d threads; device %s, %s of %s; reads by %s%s%s; experts: %d of %d resident "
            "(%s), %d slots (%s)\n",
            e->exec.k.name, fl_pool_threads(e->exec.pool), fl_device_kind(e->dev),
            fl_size_format(fixed, p->device_bytes),
            fl_size_format(cap, fl_device_budget(e->dev)->cap), fl_io_backend(e->io),
            fl_io_note(e->io) ? ", " : "", fl_io_note(e->io) ? fl_io_note(e->io) : "",
            p->n_resident, p->n_total, fl_size_format(res, p->resident_bytes), p->n_slots,
            fl_size_format(slots, (uint64_t)p->n_slots * p->slot_bytes));
    for (int i = 0; i < e->model->index->n_notes; i++)
        fprintf(stderr, "note: %s\n", e->model->index->note[i]);
}

static void print_stats(const fl_engine *e, const fl_gen_result *r)
{
    const fl_store_stats s = fl_store_get_stats(e->store);
    char read[32], used[32], cap[32];
    fprintf(stderr, "mode %s: %s\n", fl_gen_mode_name(r->mode), r->reason);
    fprintf(stderr,
            "prompt %" PRId64 " tokens in %.3f s (%.1f tokens/s), first text after %.3f s\n",
            r->n_prompt, r->prefill_s, rate((double)r->n_prompt, r->prefill_s), r->first_text_s);
    fprintf(stderr, "answer %" PRId64 " tokens in %.3f s (%.1f tokens/s), finish: %s\n",
            r->n_generated, r->decode_s, rate((double)r->n_generated, r->decode_s),
            fl_finish_name(r->finish));
    fprintf(stderr,
            "passes: %" PRId64 " prefill, %" PRId64 " clean, %" PRId64 " denoise in %" PRId64
            " blocks (at most %d each, %" PRId64 " with a commit); %.2f tokens per pass\n",
            r->prefill_passes, r->clean_passes, r->denoise_passes, r->blocks, r->max_passes,
            r->fused_passes, tokens_per_pass(r));
    if (r->held_passes > 0)
        fprintf(stderr,
                "speculation: %" PRId64 " drafts of %" PRId64 " tokens, %" PRId64
                " of them right\n",
                r->held_passes, r->drafted, r->accepted);
    fprintf(stderr,
            "experts: %" PRIu64 " asked for, %" PRIu64 " resident, %" PRIu64 " in slots, %" PRIu64
            " read (%s), waited %.3f s; read ahead %" PRIu64 ", %" PRIu64 " of them used\n",
            s.acquired, s.hit_resident, s.hit_slot, s.missed, fl_size_format(read, s.bytes_read),
            (double)s.wait_ns * 1e-9, s.prefetched, s.prefetch_used);
    fprintf(stderr, "device memory: %s at most, cap %s\n",
            fl_size_format(used, fl_device_budget(e->dev)->peak),
            fl_size_format(cap, fl_device_budget(e->dev)->cap));
}

static fl_json *experts_json(const fl_engine *e)
{
    const fl_store_stats s = fl_store_get_stats(e->store);
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "acquired", (int64_t)s.acquired);
    fl_json_set_int(j, "resident", (int64_t)s.hit_resident);
    fl_json_set_int(j, "slot_hits", (int64_t)s.hit_slot);
    fl_json_set_int(j, "read", (int64_t)s.missed);
    fl_json_set_int(j, "bytes_read", (int64_t)s.bytes_read);
    fl_json_set_int(j, "bytes_loaded", (int64_t)s.bytes_loaded);
    fl_json_set_int(j, "read_ahead", (int64_t)s.prefetched);
    fl_json_set_int(j, "read_ahead_used", (int64_t)s.prefetch_used);
    fl_json_set_num(j, "wait_s", (double)s.wait_ns * 1e-9);
    fl_json_set_int(j, "n_resident", e->plan.n_resident);
    fl_json_set_int(j, "n_total", e->plan.n_total);
    fl_json_set_int(j, "n_slots", e->plan.n_slots);
    return j;
}

static fl_json *result_json(const fl_engine *e, const fl_gen_result *r, const text *t)
{
    const fl_budget *b = fl_device_budget(e->dev);
    fl_json *j = fl_json_new_object(), *ids = fl_json_new_array();
    fl_json_set_str(j, "text", t->p ? t->p : "");
    for (int64_t i = 0; i < r->n_generated; i++) fl_json_append(ids, fl_json_new_int(r->ids[i]));
    fl_json_set(j, "ids", ids);
    fl_json_set_str(j, "finish", fl_finish_name(r->finish));
    fl_json_set_str(j, "mode", fl_gen_mode_name(r->mode));
    fl_json_set_str(j, "mode_reason", r->reason);
    fl_json_set_int(j, "prompt_tokens", r->n_prompt);
    fl_json_set_int(j, "tokens", r->n_generated);
    fl_json_set_num(j, "prefill_s", r->prefill_s);
    fl_json_set_num(j, "decode_s", r->decode_s);
    fl_json_set_num(j, "first_text_s", r->first_text_s);
    fl_json_set_num(j, "prompt_tokens_per_s", rate((double)r->n_prompt, r->prefill_s));
    fl_json_set_num(j, "tokens_per_s", rate((double)r->n_generated, r->decode_s));
    fl_json_set_num(j, "tokens_per_forward", tokens_per_pass(r));
    fl_json_set_int(j, "prefill_passes", r->prefill_passes);
    fl_json_set_int(j, "clean_passes", r->clean_passes);
    fl_json_set_int(j, "denoise_passes", r->denoise_passes);
    fl_json_set_int(j, "fused_passes", r->fused_passes);
    fl_json_set_int(j, "held_passes", r->held_passes);
    fl_json_set_int(j, "drafted", r->drafted);
    fl_json_set_int(j, "accepted", r->accepted);
    fl_json_set_int(j, "blocks", r->blocks);
    fl_json_set_int(j, "max_passes", r->max_passes);
    fl_json_set_int(j, "committed_at_threshold", r->committed_at_threshold);
    fl_json_set(j, "experts", experts_json(e));
    fl_json_set_int(j, "device_used", (int64_t)b->used);
    fl_json_set_int(j, "device_peak", (int64_t)b->peak);
    /* No cap has no number. */
    if (b->cap <= INT64_MAX) fl_json_set_int(j, "device_cap", (int64_t)b->cap);
    fl_json_set_str(j, "cpu", e->exec.k.name);
    fl_json_set_int(j, "threads", fl_pool_threads(e->exec.pool));
    fl_json_set_str(j, "io", fl_io_backend(e->io));
    return j;
}

static fl_status finish_output(const fl_options *o, const fl_engine *e, const fl_gen_result *r,
                               const sink *s, fl_err *err)
{
    if (o->json) {
        fl_json *j = result_json(e, r, &s->all);
        char *line = fl_json_dump(j, 1);
        fl_json_free(&j);
        if (!line) return FL_FAIL(err, FL_E_NOMEM, 0, "result: out of memory");
        printf("%s\n", line);
        free(line);
    } else if (s->all.n == 0 || s->all.p[s->all.n - 1] != '\n') {
        putchar('\n');
    }
    if (fflush(stdout) != 0 || s->failed)
        return FL_FAIL(err, FL_E_IO, errno, "standard output cannot be written");
    if (o->stats) print_stats(e, r);
    return FL_OK;
}

fl_status fl_tool_run(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_generator *gen = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    sink s = {.stream = !o->json};
    fl_gen_config c;
    fl_gen_result r;

    FL_GO(fl_setup_load(o, &model, &engine, err));
    FL_GO(fl_setup_gen_config(o, model, &c, err));
    FL_GO(encode_prompt(o, model, &ids, &n_ids, err));
    c.on_text = take_text;
    c.arg = &s;
    if (o->stats) print_start(engine);
    FL_GO(fl_generator_create(&gen, engine, err));
    FL_GO(fl_generate(gen, &c, ids, (int64_t)n_ids, &r, err));
    st = finish_output(o, engine, &r, &s, err);
out:
    free(s.all.p);
    free(ids);
    fl_generator_destroy(&gen);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
