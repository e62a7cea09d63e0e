#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/law_avx2.h"
#include "kernels/x86/x86.h"

static const fl_law_x86 *law_of(uint32_t type)
{
    switch (type) {
    case FL_TYPE_Q4_K: return &fl_law_avx2_q4_k;
    case FL_TYPE_Q5_K: return &fl_law_avx2_q5_k;
    case FL_TYPE_Q6_K: return &fl_law_avx2_q6_k;
    case FL_TYPE_Q3_K: return &fl_law_avx2_q3_k;
    case FL_TYPE_IQ4_XS: return &fl_law_avx2_iq4_xs;
    case FL_TYPE_Q8_0: return &fl_law_avx2_q8_0;
    case FL_TYPE_Q4_0: return &fl_law_avx2_q4_0;
    case FL_TYPE_IQ4_NL: return &fl_law_avx2_iq4_nl;
    case FL_TYPE_MXFP4: return &fl_law_avx2_mxfp4;
    default: assert(type == FL_TYPE_NVFP4); return &fl_law_avx2_nvfp4;
    }
}

/* One or two activation rows: four weight rows in the lanes of the chain. Rows past n1 repeat the
 * last one and are not stored. */
static void law_few(const fl_law_x86 *law, const fl_mat *w, int64_t bytes, int64_t n0, int64_t n1,
                    const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    int64_t nb = w->cols / 256;
    const uint8_t *data = w->data;
    for (int64_t n = n0; n < n1; n += 4) {
        const uint8_t *row[4];
        int valid = n1 - n < 4 ? (int)(n1 - n) : 4;
        for (int i = 0; i < 4; i++) row[i] = data + (n + (i < valid ? i : valid - 1)) * bytes;
        for (int r = 0; r < n_rows; r++) {
            float out[4];
            int64_t ahead = r == 0 ? FL_PREFETCH_ROWS * bytes : 0;
            __m128 v = law->four(row, ahead, x + r * nb, nb);
            _mm_storeu_ps(out, _mm_mul_ps(v, _mm_set1_ps(w->scale)));
            memcpy(y + r * ldy + n, out, (size_t)valid * sizeof *out);
        }
    }
}

static void tile_of(const fl_act *x, int64_t nb, int n_rows, fl_act_tile *t)
{
    const __m128i one = _mm_set1_epi16(1);
    __m128i all = _mm_set1_epi16(-1);
    for (int64_t i = 0; i < n_rows * nb; i++)
        all = _mm_and_si128(all, _mm_cmpeq_epi16(fl_load128(x[i].p), one));
    t->plain = _mm_movemask_epi8(all) == 0xffff;
    t->groups = (n_rows + 3) / 4;
    for (int i = 0; i < 4 * t->groups; i++) t->at[i] = x + (i < n_rows ? i : n_rows - 1) * nb;
}

void fl_law_mul(const fl_law_x86 *law, const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x,
                int n_rows, float *y, int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, true));
    int64_t nb = w->cols / 256, bytes = (int64_t)fl_type_row_bytes(w->type, (uint64_t)w->cols);
    if (n_rows <= 2) {
        law_few(law, w, bytes, n0, n1, x, n_rows, y, ldy);
        return;
    }
    for (int r0 = 0; r0 < n_rows; r0 += FL_ROW_TILE) {
        int rows = n_rows - r0 < FL_ROW_TILE ? n_rows - r0 : FL_ROW_TILE;
        fl_act_tile tile;
        tile_of(x + r0 * nb, nb, rows, &tile);
        for (int64_t n = n0; n < n1; n++) {
            float out[FL_ROW_TILE];
            law->rows((const uint8_t *)w->data + n * bytes, &tile, nb, out);
            for (int r = 0; r < rows; r++) y[(r0 + r) * ldy + n] = out[r] * w->scale;
        }
    }
}

void fl_avx2_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                     int64_t ldy)
{
    fl_law_mul(law_of(w->type), w, n0, n1, x, n_rows, y, ldy);
}
