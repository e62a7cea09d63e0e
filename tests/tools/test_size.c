/* fourleaf quantize --size: the budget is met from below, the loss falls with it, the best
 * assignment is found; files of sensitivities. */
#include <math.h>
#include <stdlib.h>

#include "runtime/model/gguf_write.h"
#include "runtime/tools/quantize.h"
#include "runtime/tools/size.h"
#include "tests/support/command.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

/* ---- files of sensitivities ---- */

static fl_status parse(fl_sensitivity *s, const char *text)
{
    return fl_sensitivity_parse(s, "x.sens", text, strlen(text), &err);
}

static double nats_of(const fl_sensitivity *s, const char *name, bool want_known)
{
    fl_conv_tensor t = {.class = FL_CONV_ATTENTION};
    bool known;
    snprintf(t.name, sizeof t.name, "%s", name);
    const double nats = fl_sensitivity_of(s, &t, &known);
    assert_int_equal(known, want_known);
    return nats;
}

static void sensitivities_are_read(void **state)
{
    (void)state;
    fl_sensitivity s;
    ASSERT_OK(parse(&s, "# head\nblk.1.attn_q.weight 2e-3 # x\r\n\nblk.0.attn_q.weight\t0\n"));
    assert_int_equal(s.n, 2);
    assert_true(nats_of(&s, "blk.1.attn_q.weight", true) == 2e-3);
    assert_true(nats_of(&s, "blk.0.attn_q.weight", true) == 0);
    /* What the file lacks is scaled to what it has. */
    const double usual = nats_of(NULL, "blk.0.attn_k.weight", false);
    const double q = nats_of(NULL, "blk.0.attn_q.weight", false);
    assert_true(usual > 0 && q > 0);
    assert_true(fabs(nats_of(&s, "blk.0.attn_k.weight", false) / usual - 1e-3 / q) < 1e-9 / q);
    fl_sensitivity_fini(&s);
    ASSERT_FAILS(parse(&s, "a 1\nb\n"), FL_E_FORMAT, "x.sens line 2: expected a tensor's name and");
    ASSERT_FAILS(parse(&s, "a -1\n"), FL_E_FORMAT, "line 1");
    ASSERT_FAILS(parse(&s, "a nan\n"), FL_E_FORMAT, "line 1");
    ASSERT_FAILS(parse(&s, "a 1 2\n"), FL_E_FORMAT, "line 1");
    ASSERT_FAILS(parse(&s, "a 1x\n"), FL_E_FORMAT, "line 1");
    ASSERT_FAILS(parse(&s, "a 1\nb 1\na 1\n"), FL_E_FORMAT, "a stands there twice");
    ASSERT_FAILS(fl_sensitivity_parse(&s, "x.sens", "a\0 1", 4, &err), FL_E_FORMAT, "line 1");
    ASSERT_FAILS(fl_sensitivity_load(&s, "/no/such/file", &err), FL_E_IO, "/no/such/file");
}

/* ---- budgets ---- */

static fl_make model(void)
{
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    m.n_expert = 4;
    m.type = FL_TYPE_F32;
    return m;
}

static uint64_t bytes_of(const char *path)
{
    fl_source *s = fl_open_source(path);
    const uint64_t n = fl_source_file_bytes(s, 0);
    fl_source_close(&s);
    return n;
}

static double bits_of(const fl_source *s, const char *name)
{
    const fl_tensor *t = fl_need_tensor(s, name);
    return 8.0 * (double)t->bytes / (double)(t->ne[0] * t->ne[1] * t->ne[2]);
}

static void a_budget_is_met_from_below(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = model();
    char *sens = fl_tmp_path(f.dir, "s"), options[300], floor[400];
    fl_make_gguf(&m, f.gguf);
    static const char text[] = "blk.1.attn_q.weight 1\nblk.0.ssm_out.weight 0\n";
    fl_tmp_write(sens, text, sizeof text - 1);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q4_k", &err));
    const uint64_t q4 = bytes_of(f.out);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q8_0", &err));
    const uint64_t q8 = bytes_of(f.out);
    for (int i = 0; i < 5; i++) {
        const uint64_t want = q4 + (q8 - q4) * (uint64_t)(i + 1) / 6 + 77;
        snprintf(options, sizeof options, "--size %llu --sensitivity %s", (unsigned long long)want,
                 sens);
        ASSERT_OK(fl_quantize_with(f.gguf, f.out, options, &err));
        const uint64_t got = bytes_of(f.out);
        assert_true(got <= want && (double)got >= 0.99 * (double)want);
        fl_source *s = fl_open_source(f.out);
        assert_true(bits_of(s, "blk.1.attn_q.weight") >= bits_of(s, "blk.1.attn_output.weight") ||
                    i > 2);
        assert_true(fl_need_tensor(s, "blk.0.ssm_out.weight")->type != FL_TYPE_Q8_0 || i > 2);
        fl_source_close(&s);
    }
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, "--size 100K", &err), FL_E_ARG,
                 "--size 100.0 KiB (102400 bytes): the least that is possible is");
    /* The floor that the message names is possible, a byte less is not. */
    const char *at = strchr(strstr(err.msg, "possible is"), '(');
    assert_non_null(at);
    const unsigned long long least = strtoull(at + 1, NULL, 10);
    snprintf(floor, sizeof floor, "--size %llu", least);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, floor, &err));
    assert_int_equal(bytes_of(f.out), least);
    snprintf(floor, sizeof floor, "--size %llu", least - 1);
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, floor, &err), FL_E_ARG, "the least that is");
    /* Above the ceiling everything is Q8_0. */
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--size 1G", &err));
    assert_int_equal(bytes_of(f.out), q8);
    free(sens);
    fl_workplace_remove(&f);
}

/* Rules of a file come before the budget, whose rest the others share. */
static void rules_come_first(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = model();
    char *rules = fl_tmp_path(f.dir, "r"), options[300];
    fl_make_gguf(&m, f.gguf);
    fl_tmp_write(rules, "*_exps.weight q6_k", 18);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q6_k", &err));
    const uint64_t want = bytes_of(f.out);
    snprintf(options, sizeof options, "--size %llu --recipe %s", (unsigned long long)want, rules);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, options, &err));
    assert_true(bytes_of(f.out) <= want && (double)bytes_of(f.out) >= 0.99 * (double)want);
    fl_source *s = fl_open_source(f.out);
    assert_int_equal(fl_need_tensor(s, "blk.0.ffn_up_exps.weight")->type, FL_TYPE_Q6_K);
    assert_int_equal(fl_need_tensor(s, "blk.1.ffn_down_exps.weight")->type, FL_TYPE_Q6_K);
    fl_source_close(&s);
    free(rules);
    fl_workplace_remove(&f);
}

/* The bytes of all files of a split output count. */
static void a_split_output_keeps_the_budget(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = model();
    fl_make_gguf(&m, f.gguf);
    char words[600];
    snprintf(words, sizeof words,
             "quantize %s %s --size 2200000 --split-size 500K --dry-run --json --threads 2", f.gguf,
             f.out);
    char *text = fl_command_output(fl_tool_quantize, words);
    const char *at = strstr(text, "\"file_bytes\": ");
    assert_non_null(at);
    const double got = atof(at + 14);
    assert_true(got <= 2200000 && got >= 0.98 * 2200000);
    free(text);
    fl_workplace_remove(&f);
}

/* Blocks that can stay as they are lose nothing: at its own size a quantized file stays itself. */
static void what_is_copied_costs_nothing(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = model();
    char *first = fl_tmp_path(f.dir, "q4.gguf"), *sens = fl_tmp_path(f.dir, "s"), options[400];
    static const char text[] = "blk.1.ffn_up_exps.weight 1\nblk.0.ffn_up_exps.weight 1e-3\n";
    fl_tmp_write(sens, text, sizeof text - 1);
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(fl_quantize_with(f.gguf, first, "--type q4_k", &err));
    snprintf(options, sizeof options, "--requantize --size %llu",
             (unsigned long long)bytes_of(first));
    ASSERT_OK(fl_quantize_with(first, f.out, options, &err));
    fl_source *a = fl_open_source(first), *b = fl_open_source(f.out);
    for (size_t i = 0; i < fl_source_n_tensors(a); i++) {
        const fl_tensor *t = fl_source_tensor(a, i);
        assert_int_equal(fl_need_tensor(b, t->name)->type, t->type);
    }
    fl_source_close(&b);
    /* A little less: the tensor that matters least gives way. */
    snprintf(options, sizeof options, "--requantize --sensitivity %s --size %llu", sens,
             (unsigned long long)bytes_of(first) - 4096);
    ASSERT_OK(fl_quantize_with(first, f.out, options, &err));
    b = fl_open_source(f.out);
    assert_int_equal(fl_need_tensor(b, "blk.1.ffn_up_exps.weight")->type, FL_TYPE_Q4_K);
    assert_int_equal(fl_need_tensor(b, "blk.0.ffn_up_exps.weight")->type, FL_TYPE_IQ4_XS);
    fl_source_close(&a);
    fl_source_close(&b);
    free(first);
    free(sens);
    fl_workplace_remove(&f);
}

/* ---- the assignment ---- */

/* Six tensors of a small model to choose for. */
enum { N = 6, MAX_TYPES = 5 };
static const char names[N][40] = {"blk.0.attn_q.weight",        "blk.0.attn_output.weight",
                                  "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
                                  "blk.0.ffn_down_exps.weight", "token_embd.weight"};
typedef struct bench {
    fl_workplace f;
    fl_source *src;
    fl_index *ix;
    fl_conv c;
    fl_pool *pool;
    fl_sensitivity sens;
    int at[N]; /* of the tensors in c */
} bench;

static void bench_make(bench *b)
{
    fl_make m = model();
    m.n_layer = m.interval = 1;
    b->f = fl_workplace_make();
    fl_make_gguf(&m, b->f.gguf);
    b->src = fl_open_source(b->f.gguf);
    ASSERT_OK(fl_index_build(&b->ix, b->src, &err));
    ASSERT_OK(fl_conv_plan(&b->c, b->ix, true, &err));
    ASSERT_OK(fl_pool_create(&b->pool, 2, &err));
    ASSERT_OK(parse(&b->sens, "blk.0.attn_q.weight 3\nblk.0.attn_output.weight 1\n"
                              "blk.0.ffn_gate_exps.weight 2\nblk.0.ffn_up_exps.weight 5\n"
                              "blk.0.ffn_down_exps.weight 4\ntoken_embd.weight 1\n"));
    for (int i = 0; i < b->c.n; i++)
        for (int k = 0; k < N; k++)
            if (strcmp(b->c.tensor[i].name, names[k]) == 0) b->at[k] = i;
}

static void bench_remove(bench *b)
{
    fl_sensitivity_fini(&b->sens);
    fl_pool_destroy(&b->pool);
    fl_conv_fini(&b->c);
    fl_index_free(&b->ix);
    fl_source_close(&b->src);
    fl_workplace_remove(&b->f);
}

/* With tensor `only` alone to choose for; -1: all six. */
static fl_size *sizer(bench *b, int only)
{
    bool done[256];
    fl_size *s;
    assert_true(b->c.n <= 256);
    for (int i = 0; i < b->c.n; i++) done[i] = true;
    for (int k = 0; k < N; k++) done[b->at[k]] = only >= 0 && only != k;
    ASSERT_OK(fl_size_create(&s, &b->c, done, &b->sens, NULL, b->pool, &err));
    return s;
}

typedef struct point {
    uint64_t bytes; /* above the floor */
    double loss;
    uint32_t type;
} point;

/* A tensor's choices, from rising budgets for it alone. */
static int points_of(bench *b, int k, point *p)
{
    fl_size *s = sizer(b, k);
    const uint64_t floor = fl_size_floor(s), room = fl_size_ceiling(s) - floor;
    int n = 0;
    for (uint64_t more = 0; more <= room; more += FL_GGUF_ALIGN) {
        double loss;
        ASSERT_OK(fl_size_choose(s, floor + more, &loss, &err));
        const uint32_t type = b->c.tensor[b->at[k]].type;
        if (n > 0 && p[n - 1].type == type) continue;
        assert_true(n < MAX_TYPES && (n == 0 || loss < p[n - 1].loss));
        p[n++] = (point){more, loss, type};
    }
    fl_size_destroy(&s);
    return n;
}

/* The least loss within a budget, by trying every assignment. */
static double least(point p[N][MAX_TYPES], const int *n, int k, uint64_t room)
{
    if (k == N) return 0;
    double best = INFINITY;
    for (int i = 0; i < n[k] && p[k][i].bytes <= room; i++)
        best = fmin(best, p[k][i].loss + least(p, n, k + 1, room - p[k][i].bytes));
    return best;
}

static uint64_t padded_bytes(const fl_conv *c)
{
    uint64_t sum = 0;
    for (int i = 0; i < c->n; i++) {
        const uint64_t bytes = fl_conv_bytes(&c->tensor[i], c->tensor[i].type);
        sum += (bytes + FL_GGUF_ALIGN - 1) / FL_GGUF_ALIGN * FL_GGUF_ALIGN;
    }
    return sum;
}

static void the_best_assignment_is_found(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    bench b;
    point p[N][MAX_TYPES];
    int n[N];
    bench_make(&b);
    for (int k = 0; k < N; k++) n[k] = points_of(&b, k, p[k]);
    fl_size *s = sizer(&b, -1);
    const uint64_t floor = fl_size_floor(s), ceiling = fl_size_ceiling(s);
    double last = INFINITY;
    for (uint64_t step = 0; step <= STEPS; step++) {
        const uint64_t room = (ceiling - floor) * step / STEPS;
        double loss;
        ASSERT_OK(fl_size_choose(s, floor + room, &loss, &err));
        assert_true(padded_bytes(&b.c) <= floor + room);
        assert_true(fabs(loss - least(p, n, 0, room)) <= 1e-12);
        assert_true(loss <= last);
        last = loss;
    }
    for (int k = 0; k < N; k++) assert_int_equal(b.c.tensor[b.at[k]].type, FL_TYPE_Q8_0);
    fl_size_destroy(&s);
    bench_remove(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sensitivities_are_read),
        cmocka_unit_test(a_budget_is_met_from_below),
        cmocka_unit_test(rules_come_first),
        cmocka_unit_test(a_split_output_keeps_the_budget),
        cmocka_unit_test(what_is_copied_costs_nothing),
        cmocka_unit_test(the_best_assignment_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
