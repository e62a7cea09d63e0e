#include "runtime/tools/run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/decode/guard.h"
#include "runtime/model/chat.h"
#include "runtime/tools/dialog.h"
#include "runtime/tools/interrupt.h"
#include "runtime/tools/memory_table.h"
#include "runtime/tools/progress.h"
#include "runtime/tools/setup.h"

enum { MAX_PROMPT_BYTES = 16 << 20, MAX_SAMPLING = 512 };

/* Bytes that grow. */
typedef struct text {
    char *p;
    size_t n, room;
} text;

static bool text_reserve(text *t, size_t room)
{
    char *grown = realloc(t->p, room + 1);
    if (!grown) return false;
    t->p = grown;
    t->p[t->n] = 0;
    t->room = room + 1;
    return true;
}

static bool text_put(text *t, const char *p, size_t n)
{
    if (t->n + n + 1 > t->room && !text_reserve(t, 2 * (t->n + n))) return false;
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
    return true;
}

/* ---- prompt ---- */

static fl_status read_stream(FILE *f, const char *name, text *t, fl_err *err)
{
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof(buf), f)) > 0) {
        const char *nul = memchr(buf, 0, n);
        if (nul)
            return FL_FAIL(err, FL_E_ARG, 0, "%s: a NUL byte at byte %zu; a prompt is UTF-8 text",
                           name, t->n + (size_t)(nul - buf));
        if (t->n + n > MAX_PROMPT_BYTES)
            return FL_FAIL(err, FL_E_ARG, 0, "%s: a prompt has at most %d MiB", name,
                           MAX_PROMPT_BYTES >> 20);
        if (!text_put(t, buf, n)) return FL_FAIL(err, FL_E_NOMEM, 0, "prompt: out of memory");
    }
    if (ferror(f))
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be read: %s", name, strerror(errno));
    return FL_OK;
}

/* A file, a pipe or a device: all that can be read to its end. */
static fl_status read_file(const char *path, text *t, fl_err *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f) return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be opened: %s", path, strerror(errno));
    const fl_status st = read_stream(f, path, t, err);
    fclose(f);
    return st;
}

static fl_status read_prompt(const fl_options *o, text *t, fl_err *err)
{
    if (o->prompt) {
        if (!text_put(t, o->prompt, strlen(o->prompt)))
            return FL_FAIL(err, FL_E_NOMEM, 0, "prompt: out of memory");
    } else if (!o->prompt_file || strcmp(o->prompt_file, "-") == 0) {
        FL_TRY(read_stream(stdin, "standard input", t, err));
    } else {
        FL_TRY(read_file(o->prompt_file, t, err));
    }
    /* The chat format strips white space. */
    if (t->n == 0 || (!o->raw && strspn(t->p, " \t\r\n") == t->n))
        return FL_FAIL(err, FL_E_ARG, 0, "the prompt is empty; give -p TEXT or -f FILE");
    return FL_OK;
}

/* The prompt's token ids; *ids is malloc'ed. */
static fl_status encode_prompt(const fl_options *o, const fl_model *m, fl_dialog *d, int32_t **ids,
                               size_t *n, fl_err *err)
{
    text user = {0};
    fl_status st = FL_OK;
    if (!m->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s holds no tokenizer: put tokenizer.json beside the weights", o->args[0]);
    FL_GO(read_prompt(o, &user, err));
    if (o->raw) {
        st = fl_tokenizer_encode(m->tokenizer, user.p, user.n, true, ids, n, err);
        goto out;
    }
    st = fl_dialog_ask(d, m->tokenizer, o->system, user.p, user.n, o->think != 0, ids, n, err);
out:
    free(user.p);
    return st;
}

/* ---- output ---- */

typedef struct sink {
    bool json;            /* write no text */
    bool keep;            /* keep it in `all` */
    fl_chat_stream *chat; /* takes reasoning and answer apart; NULL: all is answer */
    text all;             /* kept, without chat */
    char last;            /* byte written to standard output, 0 = none */
    bool dim;             /* standard error is a terminal */
    bool reasoning;       /* some of it is on standard error, the line still open */
    fl_progress progress; /* of reading the prompt */
    fl_status st;         /* of what failed first */
    fl_err *err;
} sink;

static void put_reasoning(sink *s, fl_str t)
{
    if (t.n == 0 || s->json) return;
    if (s->dim && !s->reasoning) fputs("\033[2m", stderr);
    s->reasoning = true;
    fwrite(t.p, 1, t.n, stderr);
}

static void end_reasoning(sink *s)
{
    if (s->reasoning) fputs(s->dim ? "\033[0m\n" : "\n", stderr);
    s->reasoning = false;
}

static fl_status put_answer(sink *s, fl_str t, fl_err *err)
{
    if (t.n == 0) return FL_OK;
    end_reasoning(s);
    if (s->keep && !s->chat && !text_put(&s->all, t.p, t.n))
        return FL_FAIL(err, FL_E_NOMEM, 0, "answer: out of memory");
    if (s->json) return FL_OK;
    s->last = t.p[t.n - 1];
    if (fwrite(t.p, 1, t.n, stdout) == t.n && fflush(stdout) == 0) return FL_OK;
    return FL_FAIL(err, FL_E_IO, errno, "standard output: %s", strerror(errno));
}

static bool take_text(void *arg, const char *p, size_t n)
{
    sink *s = arg;
    fl_chat_delta d = {.content = {p, n}};
    if (s->chat) s->st = fl_chat_stream_push(s->chat, p, n, &d, s->err);
    if (s->st != FL_OK) return false;
    put_reasoning(s, d.reasoning);
    s->st = put_answer(s, d.content, s->err);
    return s->st == FL_OK;
}

/* Before each chunk of the prompt and after each pass of the answer. */
static bool go_on(void *arg, int64_t done, int64_t total)
{
    sink *s = arg;
    char line[FL_PROGRESS_LINE];
    double spent = 0.0;
    if (done == total) {
        fl_progress_end(&s->progress);
    } else if (done > 0 && fl_progress_due(&s->progress, &spent)) {
        fl_progress_prompt(line, done, total, spent);
        fl_progress_line(&s->progress, line);
    }
    return !fl_interrupted();
}

/* With thinking on the prompt ends inside <think>. In the token loop nothing should allocate:
 * room for what such a text usually takes. */
static fl_status open_sink(sink *s, const fl_options *o, int64_t n_ctx, fl_err *err)
{
    const int64_t most = o->max_tokens >= 0 && o->max_tokens < n_ctx ? o->max_tokens : n_ctx;
    s->json = o->json;
    s->keep = o->json || o->session;
    s->dim = isatty(STDERR_FILENO);
    s->err = err;
    if (!o->raw && o->think != 0) {
        FL_TRY(fl_chat_stream_open(&s->chat, true, NULL, err));
        return fl_chat_stream_reserve(s->chat, 8 * (size_t)most, err);
    }
    if (s->keep && !text_reserve(&s->all, 8 * (size_t)most))
        return FL_FAIL(err, FL_E_NOMEM, 0, "answer: out of memory");
    return FL_OK;
}

static void close_sink(sink *s)
{
    end_reasoning(s);
    fl_chat_stream_close(&s->chat);
    free(s->all.p);
}

static double rate(double n, double seconds) { return seconds > 0.0 ? n / seconds : 0.0; }

/* 0 where no pass of its own read the prompt: it heads the first block, or all of it was known. */
static double prompt_rate(const fl_gen_result *r)
{
    if (r->prefill_passes == 0) return 0.0;
    return rate((double)(r->n_prompt - r->n_reused), r->prefill_s);
}

/* Generated tokens per pass, commits of blocks left out. */
static double tokens_per_pass(const fl_gen_result *r)
{
    const int64_t passes = r->choice.mode == FL_GEN_BLOCK
                               ? r->denoise_passes
                               : r->clean_passes + r->denoise_passes + r->held_passes + 1;
    return rate((double)r->n_generated, (double)passes);
}

/* ", 120 in host memory (210.0 MiB, 12.0 MiB of it pageable)", or nothing. */
static void describe_host_tier(const fl_engine *e, char *out, size_t size)
{
    char all[32], some[32], note[64] = "";
    uint64_t bytes, pinned;
    out[0] = '\0';
    if (!e->plan.n_host) return;
    fl_store_pinned(e->store, &bytes, &pinned);
    if (pinned < bytes)
        snprintf(note, sizeof note, ", %s of it pageable", fl_size_format(some, bytes - pinned));
    snprintf(out, size, ", %d in host memory (%s%s)", e->plan.n_host, fl_size_format(all, bytes),
             note);
}

static void print_start(const fl_engine *e)
{
    char fixed[32], res[32], slots[32], cap[32], threads[256], host[160];
    const fl_plan *p = &e->plan;
    fl_pool_describe(e->exec.pool, threads, sizeof threads);
    describe_host_tier(e, host, sizeof host);
    fprintf(stderr,
            "cpu %s, %s; device %s, %s of %s; reads by %s%s%s; experts: %d of %d resident "
            "(%s)%s, %d slots (%s)\n",
            e->exec.k.name, threads, fl_device_kind(e->dev), fl_size_format(fixed, p->device_bytes),
            fl_size_format(cap, fl_device_budget(e->dev)->cap), fl_io_backend(e->io),
            fl_io_note(e->io) ? ", " : "", fl_io_note(e->io) ? fl_io_note(e->io) : "",
            p->n_resident, p->n_total, fl_size_format(res, p->resident_bytes), host, p->n_slots,
            fl_size_format(slots, p->slots_bytes));
}

static void print_experts(const fl_engine *e)
{
    const fl_store_stats s = fl_store_get_stats(e->store);
    char read[32], copied[32];
    fprintf(stderr, "experts: %" PRIu64 " asked for, %" PRIu64 " resident, %" PRIu64 " in slots, ",
            s.acquired, s.hit_resident, s.hit_slot);
    if (e->plan.n_host)
        fprintf(stderr, "%" PRIu64 " computed in host memory, %" PRIu64 " copied (%s), ", s.on_cpu,
                s.copied, fl_size_format(copied, s.bytes_copied));
    fprintf(stderr,
            "%" PRIu64 " read (%s), waited %.3f s; read ahead %" PRIu64 ", %" PRIu64
            " of them used\n",
            s.missed, fl_size_format(read, s.bytes_read), (double)s.wait_ns * 1e-9, s.prefetched,
            s.prefetch_used);
    if (!fl_store_reads_ahead(e->store)) return;
    fprintf(stderr, "reading ahead: %.1f %% of needed bytes ready, %" PRIu64 " in vain; right were",
            s.needed_bytes ? 100.0 * (double)s.ready_bytes / (double)s.needed_bytes : 100.0,
            s.misfetched);
    for (int i = 0; i < FL_SIGNALS; i++) {
        const fl_signal_stats g = fl_store_signal(e->store, (fl_signal)i);
        if (g.named)
            fprintf(stderr, "%s %s %.1f %%", i ? "," : "", fl_signal_name((fl_signal)i),
                    100.0 * (double)g.right / (double)g.named);
    }
    fprintf(stderr, "\n");
}

static void print_stats(const fl_engine *e, const fl_gen_config *c, const fl_gen_result *r)
{
    char sampling[MAX_SAMPLING];
    fl_defaults_describe(&c->sampler, c->from, sampling, sizeof(sampling));
    fprintf(stderr, "mode %s: %s\n", fl_gen_mode_name(r->choice.mode), r->choice.reason);
    fprintf(stderr, "sampling: %s\n", sampling);
    fprintf(stderr, "prompt %" PRId64 " tokens", r->n_prompt);
    if (r->n_reused > 0) fprintf(stderr, ", %" PRId64 " of them known", r->n_reused);
    if (r->prefill_passes > 0)
        fprintf(stderr, " in %.3f s (%.1f tokens/s)", r->prefill_s, prompt_rate(r));
    else if (r->n_reused == 0)
        fprintf(stderr, " at the head of the first block");
    fprintf(stderr, ", first text after %.3f s\n", r->first_text_s);
    fprintf(stderr, "answer %" PRId64 " tokens in %.3f s (%.1f tokens/s), finish: %s\n",
            r->n_generated, r->decode_s, rate((double)r->n_generated, r->decode_s),
            fl_finish_name(r->finish));
    fprintf(stderr, "passes: %" PRId64 " prefill, %" PRId64 " clean, %" PRId64 " denoise",
            r->prefill_passes, r->clean_passes, r->denoise_passes);
    if (r->choice.mode == FL_GEN_BLOCK)
        fprintf(stderr, " in %" PRId64 " blocks (at most %d each, %" PRId64 " with a commit)",
                r->blocks, r->max_passes, r->fused_passes);
    if (r->choice.mode == FL_GEN_SPEC)
        fprintf(stderr, ", %" PRId64 " to check drafts", r->held_passes);
    fprintf(stderr, "; %.2f tokens per pass\n", tokens_per_pass(r));
    if (r->held_passes > 0)
        fprintf(stderr,
                "speculation: %" PRId64 " drafts of %" PRId64 " tokens from %s, %" PRId64
                " of them right\n",
                r->held_passes, r->drafted, r->draft_source, r->accepted);
    print_experts(e);
}

/* Who waits for what, above the error's line. */
static void print_stall(const fl_engine *e)
{
    fl_text t = {0};
    char *lines = NULL;
    fl_engine_describe(e, &t);
    if (fl_text_take(&t, "a report", &lines, NULL, NULL) == FL_OK) fputs(lines, stderr);
    free(lines);
}

static fl_memory_use measure_memory(const fl_engine *e, const fl_generator *g)
{
    int n = 0, most = 0;
    uint64_t bytes = 0;
    fl_generator_checkpoints(g, &n, &most, &bytes);
    return fl_memory_measure(e, (uint64_t)n * bytes);
}

/* Behind the answer: the memory it was made in. */
static void print_memory(const fl_engine *e, const fl_generator *g)
{
    char size[32];
    int n = 0, most = 0;
    uint64_t bytes = 0;
    const fl_memory_use m = measure_memory(e, g);
    fl_generator_checkpoints(g, &n, &most, &bytes);
    fprintf(stderr, "checkpoints: %d of at most %d, %s each\n", n, most,
            fl_size_format(size, bytes));
    fl_memory_print(stderr, &m);
}

static fl_json *experts_json(const fl_engine *e)
{
    const fl_store_stats s = fl_store_get_stats(e->store);
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "acquired", (int64_t)s.acquired);
    fl_json_set_int(j, "resident", (int64_t)s.hit_resident);
    fl_json_set_int(j, "slot_hits", (int64_t)s.hit_slot);
    fl_json_set_int(j, "on_cpu", (int64_t)s.on_cpu);
    fl_json_set_int(j, "copied", (int64_t)s.copied);
    fl_json_set_int(j, "read", (int64_t)s.missed);
    fl_json_set_int(j, "needed_bytes", (int64_t)s.needed_bytes);
    fl_json_set_int(j, "ready_bytes", (int64_t)s.ready_bytes);
    fl_json_set_int(j, "bytes_copied", (int64_t)s.bytes_copied);
    fl_json_set_int(j, "bytes_read", (int64_t)s.bytes_read);
    fl_json_set_int(j, "bytes_loaded", (int64_t)s.bytes_loaded);
    fl_json_set_int(j, "read_ahead", (int64_t)s.prefetched);
    fl_json_set_int(j, "read_ahead_used", (int64_t)s.prefetch_used);
    fl_json_set_int(j, "read_ahead_in_vain", (int64_t)s.misfetched);
    fl_json *signals = fl_json_new_object();
    for (int i = 0; i < FL_SIGNALS; i++) {
        const fl_signal_stats g = fl_store_signal(e->store, (fl_signal)i);
        fl_json *one = fl_json_new_object();
        fl_json_set_int(one, "named", (int64_t)g.named);
        fl_json_set_int(one, "right", (int64_t)g.right);
        fl_json_set(signals, fl_signal_name((fl_signal)i), one);
    }
    fl_json_set(j, "signals", signals);
    fl_json_set_num(j, "wait_s", (double)s.wait_ns * 1e-9);
    fl_json_set_int(j, "n_resident", e->plan.n_resident);
    fl_json_set_int(j, "n_host", e->plan.n_host);
    fl_json_set_int(j, "n_total", e->plan.n_total);
    fl_json_set_int(j, "n_slots", e->plan.n_slots);
    return j;
}

static fl_json *checkpoints_json(const fl_generator *g)
{
    int n = 0, most = 0;
    uint64_t bytes = 0;
    fl_generator_checkpoints(g, &n, &most, &bytes);
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "kept", n);
    fl_json_set_int(j, "at_most", most);
    fl_json_set_int(j, "bytes_each", (int64_t)bytes);
    return j;
}

static fl_json *result_json(const fl_engine *e, const fl_generator *g, const fl_gen_config *c,
                            const fl_gen_result *r, const fl_chat_answer *a)
{
    char sampling[MAX_SAMPLING];
    const fl_budget *b = fl_device_budget(e->dev);
    fl_json *j = fl_json_new_object(), *ids = fl_json_new_array();
    fl_json_set_str(j, "text", a->content);
    fl_json_set_str(j, "reasoning", a->reasoning);
    if (a->tool_calls) fl_json_set(j, "tool_calls", fl_json_copy(a->tool_calls));
    for (int64_t i = 0; i < r->n_generated; i++) fl_json_append(ids, fl_json_new_int(r->ids[i]));
    fl_json_set(j, "ids", ids);
    fl_defaults_describe(&c->sampler, c->from, sampling, sizeof(sampling));
    fl_json_set_str(j, "sampling", sampling);
    if (e->routing.script) fl_json_set_str(j, "synthetic", e->params.script);
    fl_json_set_str(j, "finish", fl_finish_name(r->finish));
    fl_json_set_str(j, "mode", fl_gen_mode_name(r->choice.mode));
    fl_json_set_str(j, "mode_reason", r->choice.reason);
    fl_json_set_int(j, "prompt_tokens", r->n_prompt);
    fl_json_set_int(j, "prompt_tokens_known", r->n_reused);
    fl_json_set_int(j, "tokens", r->n_generated);
    fl_json_set_num(j, "prefill_s", r->prefill_s);
    fl_json_set_num(j, "decode_s", r->decode_s);
    fl_json_set_num(j, "first_text_s", r->first_text_s);
    fl_json_set_num(j, "prompt_tokens_per_s", prompt_rate(r));
    fl_json_set_num(j, "tokens_per_s", rate((double)r->n_generated, r->decode_s));
    fl_json_set_num(j, "tokens_per_forward", tokens_per_pass(r));
    fl_json_set_int(j, "prefill_passes", r->prefill_passes);
    fl_json_set_int(j, "clean_passes", r->clean_passes);
    fl_json_set_int(j, "denoise_passes", r->denoise_passes);
    fl_json_set_int(j, "fused_passes", r->fused_passes);
    fl_json_set_int(j, "held_passes", r->held_passes);
    fl_json_set_int(j, "drafted", r->drafted);
    fl_json_set_int(j, "accepted", r->accepted);
    fl_json_set_int(j, "draft_steps", r->draft_steps);
    if (r->draft_source) fl_json_set_str(j, "draft_source", r->draft_source);
    fl_json_set_int(j, "blocks", r->blocks);
    fl_json_set_int(j, "max_passes", r->max_passes);
    fl_json_set_int(j, "committed_at_threshold", r->committed_at_threshold);
    fl_json_set(j, "experts", experts_json(e));
    fl_json_set(j, "checkpoints", checkpoints_json(g));
    const fl_memory_use memory = measure_memory(e, g);
    fl_json_set(j, "memory", fl_memory_json(&memory));
    fl_json_set_int(j, "device_used", (int64_t)b->used);
    fl_json_set_int(j, "host_used", (int64_t)fl_store_host_memory(e->store)->used);
    fl_json_set_int(j, "device_peak", (int64_t)b->peak);
    /* No cap has no number. */
    if (b->cap <= INT64_MAX) fl_json_set_int(j, "device_cap", (int64_t)b->cap);
    fl_json_set_str(j, "cpu", e->exec.k.name);
    fl_json_set_int(j, "threads", fl_pool_threads(e->exec.pool));
    fl_json_set_str(j, "io", fl_io_backend(e->io));
    return j;
}

/* Calls of tools that the model made up stand behind the answer, a JSON object on a line each. */
static fl_status put_calls(sink *s, const fl_json *calls, fl_err *err)
{
    for (size_t i = 0; i < fl_json_size(calls); i++) {
        char *line = fl_json_dump(fl_json_at(calls, i), 0);
        if (!line) return FL_FAIL(err, FL_E_NOMEM, 0, "answer: out of memory");
        fl_status st = FL_OK;
        if (s->last && s->last != '\n') st = put_answer(s, (fl_str){"\n", 1}, err);
        if (st == FL_OK) st = put_answer(s, (fl_str){line, strlen(line)}, err);
        free(line);
        FL_TRY(st);
    }
    return FL_OK;
}

/* What the stream still holds back, and the last line end. */
static fl_status finish_text(sink *s, const fl_gen_result *r, const fl_chat_answer *a,
                             const fl_chat_delta *rest, fl_err *err)
{
    put_reasoning(s, rest->reasoning);
    FL_TRY(put_answer(s, rest->content, err));
    end_reasoning(s);
    FL_TRY(put_calls(s, a->tool_calls, err));
    if (!s->last && a->reasoning_n > 0)
        fprintf(stderr, "note: the text ended (%s) before the reasoning did: no answer\n",
                fl_finish_name(r->finish));
    if (s->last != '\n') return put_answer(s, (fl_str){"\n", 1}, err);
    return FL_OK;
}

/* What the user would not expect: a penalty that the file does not name, a cut that cuts nothing.
 */
static void note_sampling(const fl_gen_config *c)
{
    static const struct {
        fl_setting setting;
        const char *option;
    } cut[] = {{FL_SET_TOP_K, "--top-k"}, {FL_SET_TOP_P, "--top-p"}, {FL_SET_MIN_P, "--min-p"}};
    if (c->from[FL_SET_PRESENCE] == FL_FROM_CLOVER)
        fprintf(stderr,
                "note: the file names no presence penalty: %g, as Clover's authors advise; "
                "--presence 0 turns it off\n",
                c->sampler.presence);
    for (int i = 0; i < 3; i++)
        if (c->sampler.temp <= 0.0 && c->from[cut[i].setting] == FL_FROM_USER)
            fprintf(stderr, "note: %s has no effect at temperature 0\n", cut[i].option);
}

/* What was given and leaves the text as it is; with --mode auto that depends on its choice. */
static void note_mode(const fl_options *o, const fl_engine *e, const fl_gen_config *c)
{
    const fl_gen_mode mode =
        fl_gen_choose(c->mode, &c->clover, &c->facts, e->params.held_rows > 1).mode;
    if (mode == FL_GEN_BLOCK) return;
    const char *name = fl_gen_mode_name(mode);
    if (!isnan(o->threshold)) fprintf(stderr, "note: --threshold has no effect in mode %s\n", name);
    if (!o->block_mode) return;
    if (mode == FL_GEN_SPEC && c->clover.has_blocks)
        fprintf(stderr, "note: --block-mode changes the drafts of mode spec, not its text\n");
    else
        fprintf(stderr, "note: --block-mode has no effect in mode %s\n", name);
}

static void note_repeat(const fl_gen_result *r)
{
    if (r->finish != FL_FINISH_REPEAT) return;
    fprintf(stderr, "note: the text was ended, it ");
    if (r->period > 0)
        fprintf(stderr, "repeated a phrase of %d token%s for %d", r->period,
                r->period == 1 ? "" : "s", FL_LOOP_TOKENS);
    else
        fprintf(stderr, "closed its thinking twice");
    fprintf(stderr, "; --presence 1.5 makes that rarer, --repeat-stop off lets it go on\n");
}

static fl_status finish_output(const fl_options *o, const fl_engine *e, const fl_generator *g,
                               const fl_gen_config *c, const fl_gen_result *r, sink *s,
                               fl_dialog *d, fl_err *err)
{
    char none[] = "";
    const fl_chat_answer plain = {
        .reasoning = none, .content = s->all.p ? s->all.p : none, .content_n = s->all.n};
    const fl_chat_answer *a = &plain;
    fl_chat_delta rest = {{"", 0}, {"", 0}};
    if (s->chat) FL_TRY(fl_chat_stream_finish(s->chat, &a, &rest, err));
    if (o->json) {
        fl_json *j = result_json(e, g, c, r, a);
        char *line = fl_json_dump(j, 1);
        fl_json_free(&j);
        if (!line) return FL_FAIL(err, FL_E_NOMEM, 0, "result: out of memory");
        printf("%s\n", line);
        free(line);
    } else {
        FL_TRY(finish_text(s, r, a, &rest, err));
    }
    note_repeat(r);
    if (o->stats) {
        print_stats(e, c, r);
        print_memory(e, g);
    }
    return fl_dialog_answer(d, a, err);
}

/* What was made before Ctrl-C is out, and in the session. */
static fl_status say_canceled(const fl_gen_result *r, const fl_dialog *d, fl_err *err)
{
    return FL_FAIL(err, FL_E_CANCELED, 0, "interrupted %s; %s%s",
                   r->n_generated > 0 ? "in the answer" : "before the answer",
                   d->path ? "what was read is kept in " : "nothing is kept",
                   d->path ? d->path : "");
}

/* Which experts the answer used, for the next runs: nothing that the answer should fail for. */
static void keep_profile(fl_engine *e)
{
    fl_err why = {0};
    if (fl_routing_save_profile(&e->routing, e->model, &why) != FL_OK)
        fprintf(stderr, "note: the profile of expert use is not kept: %s\n", why.msg);
}

/* Answers the prompt; the model is loaded. */
static fl_status answer(const fl_options *o, fl_engine *e, fl_gen_config *c, const int32_t *ids,
                        int64_t n, fl_dialog *d, fl_err *err)
{
    fl_status st = FL_OK;
    fl_generator *gen = NULL;
    fl_gen_result r;
    sink s = {0};
    fl_interrupt_catch();
    FL_GO(open_sink(&s, o, e->params.n_ctx, err));
    c->on_text = take_text;
    c->on_progress = go_on;
    c->arg = &s;
    if (o->stats) print_start(e);
    FL_GO(fl_generator_create(&gen, e, err));
    FL_GO(fl_dialog_restore(d, gen, err));
    fl_progress_start(&s.progress);
    st = fl_generate(gen, c, ids, n, &r, err);
    fl_progress_end(&s.progress);
    keep_profile(e);
    if (st == FL_E_STALLED) print_stall(e);
    if (st != FL_OK) goto out;
    FL_GO(s.st);
    FL_GO(finish_output(o, e, gen, c, &r, &s, d, err));
    FL_GO(fl_dialog_save(d, gen, o->stats, err));
    FL_GO(fl_routing_save_trace(&e->routing, err));
    if (r.finish == FL_FINISH_CANCELED) st = say_canceled(&r, d, err);
out:
    fl_interrupt_release();
    close_sink(&s);
    fl_generator_destroy(&gen);
    return st;
}

fl_status fl_tool_run(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    int32_t *ids = NULL;
    int64_t *starts = NULL;
    size_t n_ids = 0;
    fl_dialog dialog = {0};
    fl_gen_config c;

    if (!o->prompt && !o->prompt_file && isatty(STDIN_FILENO))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "no prompt: give -p TEXT or -f FILE (-f - reads this terminal)");
    FL_GO(fl_setup_open(o, &model, &engine, &c, err));
    FL_GO(fl_dialog_open(&dialog, o, engine, err));
    FL_GO(encode_prompt(o, model, &dialog, &ids, &n_ids, err));
    FL_GO(fl_roles_find(&c.roles, &starts, model->tokenizer, ids, (int64_t)n_ids, err));
    FL_GO(fl_gen_check(&c, engine, (int64_t)n_ids, err));
    FL_GO(fl_setup_load(engine, err));
    note_sampling(&c);
    note_mode(o, engine, &c);
    st = answer(o, engine, &c, ids, (int64_t)n_ids, &dialog, err);
out:
    fl_dialog_close(&dialog);
    free(ids);
    free(starts);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
