/* Which second moments the tensors of the output are rounded with, and that quantize uses them the
 * same way with any number of threads. */
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/tools/guides.h"
#include "runtime/tools/importance.h"
#include "tests/support/kern.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

typedef struct place {
    fl_workplace f;
    char *text, *imp;
    fl_source *src;
    fl_index *ix;
    fl_conv c;
} place;

static place place_make(void)
{
    place p = {.f = fl_workplace_make()};
    fl_make m = fl_make_default();
    char text[600], words[600];
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    m.n_expert = 4;
    m.type = FL_TYPE_F32;
    fl_make_gguf(&m, p.f.gguf);
    p.text = fl_tmp_path(p.f.dir, "text.txt");
    p.imp = fl_tmp_path(p.f.dir, "imp.gguf");
    for (size_t i = 0; i < sizeof text; i++) text[i] = "etaoin shrdlu,.\n"[i * i % 41 % 16];
    fl_tmp_write(p.text, text, sizeof text);
    snprintf(words, sizeof words, "importance %s %s -o %s --threads 2", p.f.gguf, p.text, p.imp);
    ASSERT_OK(fl_quiet_call(fl_tool_importance, words, &err));
    p.src = fl_open_source(p.f.gguf);
    ASSERT_OK(fl_index_build(&p.ix, p.src, &err));
    ASSERT_OK(fl_conv_plan(&p.c, p.ix, true, &err));
    for (int i = 0; i < p.c.n; i++) fl_conv_set_type(&p.c.tensor[i], FL_TYPE_Q4_K);
    return p;
}

static void place_remove(place *p)
{
    fl_conv_fini(&p->c);
    fl_index_free(&p->ix);
    fl_source_close(&p->src);
    free(p->text);
    free(p->imp);
    fl_workplace_remove(&p->f);
}

static const fl_conv_tensor *tensor_of(const place *p, const char *name)
{
    for (int i = 0; i < p->c.n; i++)
        if (strcmp(p->c.tensor[i].name, name) == 0) return &p->c.tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* The guide says the same as one made from what the file has of the matrix. */
static void compare(const place *p, const fl_conv_tensor *t, int expert, const fl_guide *g)
{
    const size_t cols = (size_t)t->cols;
    float *diag = malloc(cols * sizeof *diag), *full = malloc(cols * cols * sizeof *full);
    float *x = malloc(cols * sizeof *x), *y = malloc(cols * sizeof *y);
    fl_importance *im;
    fl_importance_found found;
    fl_guide *own;
    assert_true(diag && full && x && y);
    ASSERT_OK(fl_importance_open(&im, p->imp, &err));
    ASSERT_OK(fl_importance_get(im, t->name, t->cols, expert, diag, full, &found, &err));
    assert_true(found.diag);
    ASSERT_OK(fl_guide_create(&own, &(fl_moment){t->cols, diag, found.full ? full : NULL}, &err));
    for (size_t i = 0; i < cols; i++) {
        x[i] = fl_rnd_uniform();
        y[i] = fl_rnd_uniform();
    }
    const double a = fl_guide_loss(g, x, y, 1), b = fl_guide_loss(own, x, y, 1);
    if (!(a > 0) || a > 1.02 * b || b > 1.02 * a)
        fail_msg("%s expert %d: %g and %g", t->name, expert, a, b);
    fl_guide_destroy(&own);
    fl_importance_close(&im);
    free(diag);
    free(full);
    free(x);
    free(y);
}

static const fl_guide *take(const fl_stream_guides *s, const fl_conv_tensor *t, int expert)
{
    const fl_guide *g = NULL;
    ASSERT_OK(s->get(s->ctx, t, expert, &g, &err));
    return g;
}

static void every_tensor_gets_its_own_moments(void **state)
{
    (void)state;
    place p = place_make();
    fl_guides *guides;
    ASSERT_OK(fl_guides_open(&guides, p.imp, &p.c, &err));
    const fl_stream_guides s = fl_guides_stream(guides);
    int led = 0;
    for (int i = 0; i < p.c.n; i++) {
        const fl_conv_tensor *t = &p.c.tensor[i];
        const int experts = t->n_dims == 3 ? (int)t->ne[2] : 1;
        for (int e = 0; e < experts; e++) {
            const fl_guide *g = take(&s, t, e);
            if (g && i % FL_SANITIZED_OR(4, 1) == 0) compare(&p, t, e, g);
            if (t->fixed || t->class == FL_CONV_EMBED)
                assert_null(g);
            else
                assert_non_null(g);
            led += g != NULL;
            s.put(s.ctx, t, e, g);
        }
    }
    char line[256], want[64];
    snprintf(want, sizeof want, "importance led %d matrices, 1 were rounded without", led);
    assert_non_null(strstr(fl_guides_summary(guides, line), want));
    fl_guides_close(&guides);
    place_remove(&p);
}

static void matrices_with_the_same_inputs_share_a_guide(void **state)
{
    (void)state;
    place p = place_make();
    fl_guides *guides;
    ASSERT_OK(fl_guides_open(&guides, p.imp, &p.c, &err));
    const fl_stream_guides s = fl_guides_stream(guides);
    fl_conv_tensor q = *tensor_of(&p, "blk.1.attn_q.weight");
    const fl_conv_tensor *k = tensor_of(&p, "blk.1.attn_k.weight");
    const fl_guide *a = take(&s, &q, 0), *b = take(&s, k, 0);
    assert_true(a && a == b);
    s.put(s.ctx, &q, 0, a);
    s.put(s.ctx, k, 0, b);
    /* What is not searched, or copied, needs none. */
    q.type = FL_TYPE_BF16;
    assert_null(take(&s, &q, 0));
    q.type = FL_TYPE_Q4_K;
    q.copied = true;
    assert_null(take(&s, &q, 0));
    fl_guides_close(&guides);
    place_remove(&p);
}

static void a_file_of_another_model_is_refused(void **state)
{
    (void)state;
    place p = place_make();
    fl_guides *guides;
    fl_conv_tensor *t = (fl_conv_tensor *)tensor_of(&p, "blk.1.attn_q.weight");
    t->cols = 128;
    ASSERT_FAILS(fl_guides_open(&guides, p.imp, &p.c, &err), FL_E_FORMAT, "blk.1.");
    assert_null(guides);
    ASSERT_FAILS(fl_guides_open(&guides, "/no/such/file", &p.c, &err), FL_E_IO, "/no/such");
    place_remove(&p);
}

static void same_bytes_with_any_number_of_threads(void **state)
{
    (void)state;
    place p = place_make();
    char options[600], *one, *four, *plain;
    uint64_t n, k;
    /* The others stay as they are: a sanitizer makes the search long. */
    static const char few[] = "blk.1.ffn_*_exps.weight q4_k\nblk.1.attn_q.weight q4_k\n";
    static const char all[] = "* q4_k\n";
    char *rules = fl_tmp_path(p.f.dir, "rules");
    const char *const text = FL_SANITIZED_OR(few, all);
    fl_tmp_write(rules, text, strlen(text));
    snprintf(options, sizeof options, "--type bf16 --recipe %s --importance %s --threads 1", rules,
             p.imp);
    ASSERT_OK(fl_quantize_with(p.f.gguf, p.f.out, options, &err));
    ASSERT_OK(fl_file_load(p.f.out, 1 << 26, &one, &n, &err));
    snprintf(options, sizeof options, "--type bf16 --recipe %s --importance %s --threads 4", rules,
             p.imp);
    ASSERT_OK(fl_quantize_with(p.f.gguf, p.f.out, options, &err));
    ASSERT_OK(fl_file_load(p.f.out, 1 << 26, &four, &k, &err));
    assert_int_equal(n, k);
    assert_memory_equal(one, four, n);
    snprintf(options, sizeof options, "--type bf16 --recipe %s", rules);
    ASSERT_OK(fl_quantize_with(p.f.gguf, p.f.out, options, &err));
    ASSERT_OK(fl_file_load(p.f.out, 1 << 26, &plain, &k, &err));
    assert_int_equal(n, k);
    assert_true(memcmp(one, plain, n) != 0);
    free(one);
    free(four);
    free(plain);
    free(rules);
    place_remove(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_gets_its_own_moments),
        cmocka_unit_test(matrices_with_the_same_inputs_share_a_guide),
        cmocka_unit_test(a_file_of_another_model_is_refused),
        cmocka_unit_test(same_bytes_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
