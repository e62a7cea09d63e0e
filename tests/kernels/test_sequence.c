/* Entries that walk a sequence: the gated delta scan and attention. Tiers against the reference
 * bit for bit, the reference against double precision, and what a result may not depend on. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/kern.h"
#include "tests/support/test.h"

typedef struct scan {
    fl_gdn_args a;
    int64_t n_state, n_out;
    float *q, *k, *v, *gate, *state; /* state: as it was before */
} scan;

static void scan_make(scan *s, int dk, int dv, int rows, int strict, int reverse)
{
    int64_t pad = fl_rnd_below(4);
    s->n_state = (int64_t)dk * dv;
    s->n_out = rows * (dv + pad);
    s->q = malloc((size_t)(rows * (dk + pad)) * sizeof(float));
    s->k = malloc((size_t)(rows * (dk + pad)) * sizeof(float));
    s->v = malloc((size_t)(rows * (dv + pad)) * sizeof(float));
    s->gate = malloc((size_t)rows * 3 * sizeof(float));
    s->state = malloc((size_t)s->n_state * sizeof(float));
    assert_true(s->q && s->k && s->v && s->gate && s->state);
    fl_rnd_floats(s->q, rows * (dk + pad), 0);
    fl_rnd_floats(s->k, rows * (dk + pad), 0);
    fl_rnd_floats(s->v, rows * (dv + pad), 0);
    fl_rnd_floats(s->state, s->n_state, fl_rnd_below(4) ? 0 : 5);
    float norm = 1.0f / sqrtf((float)dk);
    for (int64_t i = 0; i < rows * (dk + pad); i++) s->k[i] *= norm;
    for (int i = 0; i < rows * 3; i++) s->gate[i] = 0.5f + 0.5f * fl_rnd_uniform();
    s->a = (fl_gdn_args){.dk = dk,
                         .dv = dv,
                         .n_rows = rows,
                         .strict = strict,
                         .reverse = reverse,
                         .q = s->q,
                         .k = s->k,
                         .v = s->v,
                         .q_stride = dk + pad,
                         .k_stride = dk + pad,
                         .v_stride = dv + pad,
                         .decay = s->gate,
                         .beta = s->gate + 1,
                         .gate_stride = 3,
                         .o_stride = dv + pad};
}

static void scan_free(scan *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->gate);
    free(s->state);
}

/* Runs from the stored state into guarded memory of the caller. */
static void scan_run(const scan *s, const fl_kernels *k, float *state, float *o)
{
    fl_gdn_args a = s->a;
    memcpy(state, s->state, (size_t)s->n_state * sizeof *state);
    a.s = state;
    a.o = o;
    k->gdn_scan(&a);
}

/* The recurrence of base-model and decoder in double precision, o included. */
static void scan_double(const scan *s, double *state, double *o)
{
    const fl_gdn_args *a = &s->a;
    for (int64_t i = 0; i < s->n_state; i++) state[i] = s->state[i];
    for (int step = 0; step < a->n_rows; step++) {
        int t = a->reverse ? a->n_rows - 1 - step : step;
        for (int j = 0; j < a->dv; j++) {
            double m = 0, r = 0;
            for (int i = 0; i < a->dk; i++) {
                double *e = &state[i * a->dv + j];
                r += a->q[t * a->q_stride + i] * *e;
                *e *= a->decay[t * a->gate_stride];
                m += a->k[t * a->k_stride + i] * *e;
            }
            double d = a->beta[t * a->gate_stride] * (a->v[t * a->v_stride + j] - m), w = 0;
            for (int i = 0; i < a->dk; i++) {
                double *e = &state[i * a->dv + j];
                *e += a->k[t * a->k_stride + i] * d;
                w += a->q[t * a->q_stride + i] * *e;
            }
            o[t * a->o_stride + j] = a->strict ? r : w;
        }
    }
}

static const int dims[][3] = {{16, 16, 1}, {16, 16, 5}, {128, 128, 3}, {128, 128, 33}, {5, 7, 4},
                              {32, 40, 6}, {7, 12, 2},  {1, 1, 3},     {64, 72, 9},    {128, 96, 2},
                              {3, 33, 8},  {24, 8, 0},  {260, 33, 3},  {256, 31, 4}};
enum { N_DIMS = sizeof dims / sizeof *dims };

static void test_gdn_tiers(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    if (n_tiers == 0) skip();
    assert_true(fl_kernels_init(&ref, "reference"));
    for (int c = 0; c < N_DIMS * 4; c++) {
        scan s;
        const int *d = dims[c / 4];
        scan_make(&s, d[0], d[1], d[2], c & 1, c >> 1 & 1);
        float *s0 = fl_guard_new(s.n_state), *s1 = fl_guard_new(s.n_state);
        float *o0 = fl_guard_new(s.n_out), *o1 = fl_guard_new(s.n_out);
        scan_run(&s, &ref, s0, o0);
        for (int t = 0; t < n_tiers; t++) {
            scan_run(&s, &tier[t], s1, o1);
            fl_guard_check(s1, s.n_state, "gdn_scan state");
            fl_guard_check(o1, s.n_out, "gdn_scan");
            fl_same_bits(s1, s0, s.n_state, tier[t].name, "gdn_scan state");
            fl_same_bits(o1, o0, s.n_out, tier[t].name, "gdn_scan");
        }
        fl_guard_free(s0);
        fl_guard_free(s1);
        fl_guard_free(o0);
        fl_guard_free(o1);
        scan_free(&s);
    }
}

static void test_gdn_accuracy(void **state)
{
    (void)state;
    fl_kernels ref;
    assert_true(fl_kernels_init(&ref, "reference"));
    for (int c = 0; c < N_DIMS * 4; c++) {
        scan s;
        const int *d = dims[c / 4];
        scan_make(&s, d[0], d[1], d[2], c & 1, c >> 1 & 1);
        fl_rnd_floats(s.state, s.n_state, 0);
        float *st = fl_guard_new(s.n_state), *o = fl_guard_new(s.n_out);
        double *want_st = calloc((size_t)s.n_state, sizeof *want_st);
        double *want_o = calloc((size_t)s.n_out + 1, sizeof *want_o);
        assert_true(want_st && want_o);
        scan_run(&s, &ref, st, o);
        scan_double(&s, want_st, want_o);
        for (int64_t i = 0; i < s.n_state; i++) assert_true(fabs(st[i] - want_st[i]) <= 1e-5);
        for (int t = 0; t < d[2]; t++) {
            for (int j = 0; j < d[1]; j++) {
                int64_t i = t * s.a.o_stride + j;
                assert_true(fabs(o[i] - want_o[i]) <= 1e-6 * d[0] + 1e-5);
            }
        }
        fl_guard_free(st);
        fl_guard_free(o);
        free(want_st);
        free(want_o);
        scan_free(&s);
    }
}

/* A scan cut anywhere gives the same bits: the state carries everything. */
static void test_gdn_cut(void **state)
{
    (void)state;
    fl_kernels k;
    assert_true(fl_kernels_init(&k, NULL));
    for (int cut = 0; cut <= 12; cut++) {
        scan s;
        scan_make(&s, 32, 48, 12, 0, 0);
        float *s0 = fl_guard_new(s.n_state), *s1 = fl_guard_new(s.n_state);
        float *o0 = fl_guard_new(s.n_out), *o1 = fl_guard_new(s.n_out);
        scan_run(&s, &k, s0, o0);
        fl_gdn_args a = s.a, b = s.a;
        memcpy(s1, s.state, (size_t)s.n_state * sizeof *s1);
        a.s = b.s = s1;
        a.o = o1;
        a.n_rows = cut;
        k.gdn_scan(&a);
        b.n_rows = 12 - cut;
        b.q += cut * b.q_stride;
        b.k += cut * b.k_stride;
        b.v += cut * b.v_stride;
        b.decay += cut * b.gate_stride;
        b.beta += cut * b.gate_stride;
        b.o = o1 + cut * b.o_stride;
        k.gdn_scan(&b);
        fl_same_bits(s1, s0, s.n_state, k.name, "state of a cut scan");
        fl_same_bits(o1, o0, s.n_out, k.name, "output of a cut scan");
        fl_guard_free(s0);
        fl_guard_free(s1);
        fl_guard_free(o0);
        fl_guard_free(o1);
        scan_free(&s);
    }
}

enum { MAX_ROWS = 40 };

typedef struct heads {
    fl_attn_args a;
    float *q;
    void *k, *v;
    int64_t n_keys[MAX_ROWS], n_out; /* floats of a dense output */
} heads;

/* The first row sees n_keys keys, the others some of them. */
static void heads_make(heads *h, int n_rows, int n_kv, int n_q, int head_dim, int64_t n_keys,
                       uint32_t type, int kind)
{
    int64_t stride = n_kv * head_dim + (type == FL_TYPE_Q8_0 ? 32 : 8) * fl_rnd_below(3);
    int64_t n = n_keys * stride, q_stride = n_kv * n_q * head_dim + fl_rnd_below(3);
    float *f = malloc((size_t)n * sizeof *f);
    h->q = malloc((size_t)(n_rows * q_stride) * sizeof(float));
    h->k = malloc(fl_type_row_bytes(type, (uint64_t)n));
    h->v = malloc(fl_type_row_bytes(type, (uint64_t)n));
    assert_true(f && h->q && h->k && h->v);
    fl_rnd_floats(h->q, n_rows * q_stride, 0);
    for (int w = 0; w < 2; w++) {
        fl_rnd_floats(f, n, kind == 3 ? 1 : kind);
        fl_type_get(type)->quantize(f, w ? h->v : h->k, n);
    }
    free(f);
    for (int r = 0; r < n_rows; r++) h->n_keys[r] = r == 0 ? n_keys : 1 + fl_rnd_below((int)n_keys);
    h->n_out = (int64_t)n_rows * n_kv * n_q * head_dim;
    h->a = (fl_attn_args){.q = h->q,
                          .q_stride = q_stride,
                          .n_rows = n_rows,
                          .n_kv = n_kv,
                          .n_q = n_q,
                          .head_dim = head_dim,
                          .k = h->k,
                          .v = h->v,
                          .kv_stride = stride,
                          .kv_type = type,
                          .n_keys = h->n_keys,
                          .scale = kind == 3 ? 3.0f : 1.0f / sqrtf((float)head_dim)};
}

static void heads_free(heads *h)
{
    free(h->q);
    free(h->k);
    free(h->v);
}

static void heads_run(const heads *h, const fl_kernels *k, float *out)
{
    k->attention(&h->a, out, (int64_t)h->a.n_kv * h->a.n_q * h->a.head_dim);
}

static const int keys[] = {1, 2, 15, 16, 17, 40, 255, 256, 257, 300, 512, 530, 769};
enum { N_KEYS = sizeof keys / sizeof *keys };

static const uint32_t kv_types[] = {FL_TYPE_F16, FL_TYPE_Q8_0, FL_TYPE_F32};

/* Case c of N_KEYS * 6 over the numbers of keys, types and characters of data. */
static void heads_case(heads *h, int c)
{
    const uint32_t type = kv_types[c % 3];
    const int kind = c % 6 >= 3 ? 3 : c % 5 == 0 ? 4 : 0;
    int dim = fl_rnd_below(3) ? 16 * (1 + fl_rnd_below(9)) : c % 4 == 0 ? 528 : 256;
    if (keys[c / 6] > 300) dim = 48;
    if (type == FL_TYPE_Q8_0) dim = (dim + 31) / 32 * 32;
    heads_make(h, 1 + fl_rnd_below(6), 1 + fl_rnd_below(3), 1 + fl_rnd_below(9), dim, keys[c / 6],
               type, kind);
}

static void test_attention_tiers(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    if (n_tiers == 0) skip();
    assert_true(fl_kernels_init(&ref, "reference"));
    for (int c = 0; c < N_KEYS * 6; c++) {
        heads h;
        heads_case(&h, c);
        float *want = fl_guard_new(h.n_out), *got = fl_guard_new(h.n_out);
        heads_run(&h, &ref, want);
        for (int t = 0; t < n_tiers; t++) {
            heads_run(&h, &tier[t], got);
            fl_guard_check(got, h.n_out, "attention");
            fl_same_bits(got, want, h.n_out, tier[t].name, "attention");
        }
        fl_guard_free(want);
        fl_guard_free(got);
        heads_free(&h);
    }
}

/* Chunk by chunk and joined; the parts have room for heads that the call leaves alone. */
static void heads_by_chunks(const heads *h, const fl_kernels *k, float *out)
{
    const fl_attn_args *a = &h->a;
    const int64_t n_heads = a->n_kv * a->n_q, ld = n_heads + 1, n = a->n_rows * ld,
                  dim = a->head_dim;
    float *m[2], *l[2], *o[2];
    for (int i = 0; i < 2; i++) {
        m[i] = fl_guard_new(n);
        l[i] = fl_guard_new(n);
        o[i] = fl_guard_new(n * dim);
    }
    for (int64_t i = 0; i < n; i++) l[0][i] = 0.0f;
    for (int64_t c = 0; c * FL_ATTN_CHUNK < h->n_keys[0]; c++) {
        k->attention_chunk(a, c, &(fl_attn_part){m[1], l[1], o[1], ld});
        for (int r = 0; r < a->n_rows; r++) {
            const fl_attn_part run = {m[0] + r * ld, l[0] + r * ld, o[0] + r * ld * dim, ld};
            const fl_attn_part part = {m[1] + r * ld, l[1] + r * ld, o[1] + r * ld * dim, ld};
            assert_true(fl_guard_untouched(part.sum, n_heads));
            assert_true(fl_guard_untouched(part.max, n_heads));
            assert_true(fl_guard_untouched(part.out, n_heads * dim));
            k->attention_join(&run, &part, (int)n_heads, a->head_dim);
        }
    }
    for (int r = 0; r < a->n_rows; r++)
        for (int64_t i = 0; i < n_heads * dim; i++)
            out[r * n_heads * dim + i] = o[0][r * ld * dim + i] / l[0][r * ld + i / dim];
    for (int i = 0; i < 2; i++) {
        fl_guard_check(m[i], n, "attention_chunk max");
        fl_guard_check(l[i], n, "attention_chunk sum");
        fl_guard_check(o[i], n * dim, "attention_chunk");
        fl_guard_free(m[i]);
        fl_guard_free(l[i]);
        fl_guard_free(o[i]);
    }
}

static void test_attention_chunks(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&ref, "reference"));
    tier[n_tiers++] = ref;
    for (int c = 0; c < N_KEYS * 6; c++) {
        heads h;
        heads_case(&h, c);
        float *want = fl_guard_new(h.n_out), *got = fl_guard_new(h.n_out);
        heads_run(&h, &ref, want);
        for (int t = 0; t < n_tiers; t++) {
            heads_by_chunks(&h, &tier[t], got);
            fl_same_bits(got, want, h.n_out, tier[t].name, "attention in chunks");
        }
        fl_guard_free(want);
        fl_guard_free(got);
        heads_free(&h);
    }
}

/* Rows of a block or a prompt together, as many units as a group has and more, and each alone. */
static void test_attention_rows(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS];
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&tier[n_tiers++], "reference"));
    for (int c = 0; c < 12 * n_tiers; c++) {
        const fl_kernels *k = &tier[c / 12];
        heads h;
        heads_make(&h, c % 2 ? MAX_ROWS : 9, 1 + c % 2, 1 + c % 5, 32, 530, kv_types[c % 3], 3);
        float *want = fl_guard_new(h.n_out), *got = fl_guard_new(h.n_out);
        heads_run(&h, k, want);
        for (int r = 0; r < h.a.n_rows; r++) {
            fl_attn_args one = h.a;
            one.n_rows = 1;
            one.q += r * one.q_stride;
            one.n_keys += r;
            const int64_t stride = one.n_kv * one.n_q * 32;
            k->attention(&one, got + r * stride, stride);
        }
        fl_same_bits(got, want, h.n_out, k->name, "rows of attention alone");
        fl_guard_free(want);
        fl_guard_free(got);
        heads_free(&h);
    }
}

static void attention_double(const heads *h, int head, double *out)
{
    const fl_attn_args *a = &h->a;
    const int64_t n_keys = h->n_keys[0];
    double *p = malloc((size_t)n_keys * sizeof *p), top = -INFINITY, sum = 0;
    assert_non_null(p);
    const float *k = a->k, *v = a->v;
    for (int64_t j = 0; j < n_keys; j++) {
        p[j] = 0;
        for (int d = 0; d < a->head_dim; d++)
            p[j] += (double)a->q[head * a->head_dim + d] * k[j * a->kv_stride + d];
        p[j] *= a->scale;
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < n_keys; j++) sum += p[j] = exp(p[j] - top);
    for (int d = 0; d < a->head_dim; d++) {
        out[d] = 0;
        for (int64_t j = 0; j < n_keys; j++) out[d] += p[j] / sum * v[j * a->kv_stride + d];
    }
    free(p);
}

static void test_attention_accuracy(void **state)
{
    (void)state;
    fl_kernels ref;
    assert_true(fl_kernels_init(&ref, "reference"));
    float out[3 * 64];
    double want[64];
    for (int c = 0; c < N_KEYS * 2; c++) {
        heads h;
        heads_make(&h, 1, 1, 3, 64, keys[c / 2], FL_TYPE_F32, c & 1 ? 3 : 0);
        heads_run(&h, &ref, out);
        for (int i = 0; i < 3; i++) {
            attention_double(&h, i, want);
            for (int d = 0; d < 64; d++)
                assert_true(fabs(out[i * 64 + d] - want[d]) <= (c & 1 ? 5e-3 : 3e-6));
        }
        heads_free(&h);
    }
}

/* A Q8_0 cache stands for exact numbers: attention over them as floats gives the same bits. */
static void test_attention_q8_0(void **state)
{
    (void)state;
    fl_kernels k;
    assert_true(fl_kernels_init(&k, NULL));
    for (int c = 0; c < N_KEYS * 2; c++) {
        heads h;
        heads_make(&h, 1, 1, 5, 96, keys[c / 2], FL_TYPE_Q8_0, c & 1 ? 5 : 0);
        const int64_t n = h.n_keys[0] * h.a.kv_stride;
        float *f = malloc((size_t)(2 * n) * sizeof *f);
        assert_non_null(f);
        fl_type_get(FL_TYPE_Q8_0)->dequantize(h.k, f, n);
        fl_type_get(FL_TYPE_Q8_0)->dequantize(h.v, f + n, n);
        heads plain = h;
        plain.a.k = f;
        plain.a.v = f + n;
        plain.a.kv_type = FL_TYPE_F32;
        float *want = fl_guard_new(5 * 96), *got = fl_guard_new(5 * 96);
        heads_run(&plain, &k, want);
        heads_run(&h, &k, got);
        fl_same_bits(got, want, 5 * 96, k.name, "attention over q8_0");
        fl_guard_free(want);
        fl_guard_free(got);
        free(f);
        heads_free(&h);
    }
}

/* The result depends on the first n_keys keys and on nothing behind them, nor on how many query
 * heads go together. */
static void test_attention_alone(void **state)
{
    (void)state;
    fl_kernels k;
    assert_true(fl_kernels_init(&k, NULL));
    for (int c = 0; c < N_KEYS; c++) {
        heads h;
        heads_make(&h, 1, 1, 8, 32, keys[c] + 300, FL_TYPE_F32, 0);
        float *want = fl_guard_new(8 * 32), *got = fl_guard_new(8 * 32);
        h.n_keys[0] = keys[c];
        heads_run(&h, &k, want);
        float *kk = h.k, *vv = h.v;
        for (int64_t i = (keys[c] - 1) * h.a.kv_stride + 32; i < (keys[c] + 300) * h.a.kv_stride;
             i++)
            kk[i] = vv[i] = NAN;
        heads_run(&h, &k, got);
        fl_same_bits(got, want, 8 * 32, k.name, "attention with NaN behind the keys");
        for (int i = 0; i < 8; i++) {
            heads one = h;
            one.a.n_q = 1;
            one.a.q = h.q + 32 * i;
            heads_run(&one, &k, got);
            fl_same_bits(got, want + 32 * i, 32, k.name, "one head alone");
        }
        fl_guard_free(want);
        fl_guard_free(got);
        heads_free(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gdn_accuracy),    cmocka_unit_test(test_gdn_tiers),
        cmocka_unit_test(test_gdn_cut),         cmocka_unit_test(test_attention_accuracy),
        cmocka_unit_test(test_attention_tiers), cmocka_unit_test(test_attention_alone),
        cmocka_unit_test(test_attention_q8_0),  cmocka_unit_test(test_attention_chunks),
        cmocka_unit_test(test_attention_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
