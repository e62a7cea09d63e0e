#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

/* L6 products: the 16 virtual lanes are two vectors of eight. */

/* Elements i .. i + 15 of a row of F32, F16 or BF16. */
FL_INLINE void load16(uint32_t type, const uint8_t *row, int64_t i, __m256 v[2])
{
    if (type == FL_TYPE_F32) {
        v[0] = _mm256_loadu_ps((const float *)row + i);
        v[1] = _mm256_loadu_ps((const float *)row + i + 8);
    } else if (type == FL_TYPE_F16) {
        __m256i h = fl_load256(row + 2 * i);
        v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
        v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    } else {
        for (int k = 0; k < 2; k++) {
            __m256i h = _mm256_cvtepu16_epi32(fl_load128(row + 2 * i + 16 * k));
            v[k] = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
        }
    }
}

FL_INLINE void float_four(uint32_t type, const uint8_t *const row[4], int64_t ahead, const float *x,
                          int64_t cols, float out[4])
{
    const int64_t size = type == FL_TYPE_F32 ? 4 : 2;
    __m256 a[4], b[4];
    for (int i = 0; i < 4; i++) a[i] = b[i] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) {
        __m256 u = _mm256_loadu_ps(x + c), v = _mm256_loadu_ps(x + c + 8);
        for (int i = 0; i < 4; i++) {
            __m256 w[2];
            if (c % (64 / size) == 0) fl_prefetch(row[i] + ahead + c * size, 64);
            load16(type, row[i], c, w);
            a[i] = _mm256_fmadd_ps(w[0], u, a[i]);
            b[i] = _mm256_fmadd_ps(w[1], v, b[i]);
        }
    }
    if (c == cols) {
        _mm_storeu_ps(out, fl_lanes_sum4(a, b));
        return;
    }
    for (int i = 0; i < 4; i++) {
        float tail[16];
        fl_type_get(type)->dequantize(row[i] + c * size, tail, cols - c);
        out[i] = fl_lanes_finish(a[i], b[i], tail, x + c, cols - c);
    }
}

FL_INLINE void float_few(uint32_t type, const fl_mat *w, int64_t n0, int64_t n1, const float *x,
                         int64_t ldx, int n_rows, float *y, int64_t ldy)
{
    int64_t bytes = w->cols * (type == FL_TYPE_F32 ? 4 : 2);
    for (int64_t n = n0; n < n1; n += 4) {
        const uint8_t *row[4];
        int valid = n1 - n < 4 ? (int)(n1 - n) : 4;
        for (int i = 0; i < 4; i++)
            row[i] = (const uint8_t *)w->data + (n + (i < valid ? i : valid - 1)) * bytes;
        for (int r = 0; r < n_rows; r++) {
            float out[4];
            int64_t ahead = r == 0 ? FL_PREFETCH_ROWS * bytes : 0;
            float_four(type, row, ahead, x + r * ldx, w->cols, out);
            for (int i = 0; i < valid; i++) y[r * ldy + n + i] = out[i] * w->scale;
        }
    }
}

/* Several activation rows: a piece of two weight rows is turned into floats once and meets all
 * rows of a tile; the lanes of every output wait in memory between pieces. */
enum { PIECE = 512, TILE = 48 };

typedef struct lanes {
    float v[16];
} lanes;

/* lanes[i][r] += w[i] . x[r] over n columns, for 2 weight and n_x activation rows. */
FL_INLINE void block_2xn(const float w[2][PIECE], const float *x, int64_t ldx, int64_t n, int n_x,
                         lanes *const acc[2])
{
    __m256 a[2][3], b[2][3];
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < n_x; r++) {
            a[i][r] = _mm256_loadu_ps(acc[i][r].v);
            b[i][r] = _mm256_loadu_ps(acc[i][r].v + 8);
        }
    }
    int64_t c = 0;
    for (; c + 16 <= n; c += 16) {
        for (int h = 0; h < 2; h++) {
            __m256 u = _mm256_loadu_ps(w[0] + c + 8 * h), v = _mm256_loadu_ps(w[1] + c + 8 * h);
            for (int r = 0; r < n_x; r++) {
                __m256 t = _mm256_loadu_ps(x + r * ldx + c + 8 * h);
                __m256 *p = h ? b[0] : a[0], *q = h ? b[1] : a[1];
                p[r] = _mm256_fmadd_ps(u, t, p[r]);
                q[r] = _mm256_fmadd_ps(v, t, q[r]);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < n_x; r++) {
            _mm256_storeu_ps(acc[i][r].v, a[i][r]);
            _mm256_storeu_ps(acc[i][r].v + 8, b[i][r]);
            for (int64_t j = c; j < n; j++) {
                float *lane = &acc[i][r].v[j - c];
                *lane = fmaf(w[i][j], x[r * ldx + j], *lane);
            }
        }
    }
}

static void block_2x3(const float w[2][PIECE], const float *x, int64_t ldx, int64_t n,
                      lanes *const acc[2])
{
    block_2xn(w, x, ldx, n, 3, acc);
}
static void block_2x1(const float w[2][PIECE], const float *x, int64_t ldx, int64_t n,
                      lanes *const acc[2])
{
    block_2xn(w, x, ldx, n, 1, acc);
}

/* n floats of a weight row from column c on. */
static void to_float(const fl_type_info *t, uint32_t type, const uint8_t *row, int64_t c, int64_t n,
                     float *out)
{
    int64_t i = 0;
    if (type == FL_TYPE_F16) {
        for (; i + 16 <= n; i += 16) {
            __m256 v[2];
            load16(FL_TYPE_F16, row, c + i, v);
            _mm256_storeu_ps(out + i, v[0]);
            _mm256_storeu_ps(out + i + 8, v[1]);
        }
    } else if (type == FL_TYPE_BF16) {
        for (; i + 16 <= n; i += 16) {
            __m256 v[2];
            load16(FL_TYPE_BF16, row, c + i, v);
            _mm256_storeu_ps(out + i, v[0]);
            _mm256_storeu_ps(out + i + 8, v[1]);
        }
    }
    if (i < n) t->dequantize(row + (c + i) / t->block_elems * t->block_bytes, out + i, n - i);
}

/* Weight rows n and n + 1 (or n twice) against a tile of activation rows. */
static void float_tile(const fl_mat *w, const fl_type_info *t, const uint8_t *const row[2],
                       const float *x, int64_t ldx, int n_rows, lanes acc[2][TILE])
{
    memset(acc[0], 0, (size_t)n_rows * sizeof(lanes));
    memset(acc[1], 0, (size_t)n_rows * sizeof(lanes));
    for (int64_t c = 0; c < w->cols; c += PIECE) {
        int64_t n = w->cols - c < PIECE ? w->cols - c : PIECE;
        float piece[2][PIECE];
        for (int i = 0; i < 2; i++) to_float(t, w->type, row[i], c, n, piece[i]);
        for (int r = 0; r < n_rows;) {
            lanes *const at[2] = {&acc[0][r], &acc[1][r]};
            const float *xr = x + r * ldx + c;
            if (r + 3 <= n_rows) {
                block_2x3(piece, xr, ldx, n, at);
                r += 3;
            } else {
                block_2x1(piece, xr, ldx, n, at);
                r++;
            }
        }
    }
}

static void float_many(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                       int n_rows, float *y, int64_t ldy)
{
    const fl_type_info *t = fl_type_get(w->type);
    int64_t bytes = (int64_t)fl_type_row_bytes(w->type, (uint64_t)w->cols);
    for (int r0 = 0; r0 < n_rows; r0 += TILE) {
        int rows = n_rows - r0 < TILE ? n_rows - r0 : TILE;
        for (int64_t n = n0; n < n1; n += 2) {
            int valid = n + 1 < n1 ? 2 : 1;
            const uint8_t *first = (const uint8_t *)w->data + n * bytes;
            const uint8_t *const row[2] = {first, first + (valid - 1) * bytes};
            lanes acc[2][TILE];
            float_tile(w, t, row, x + r0 * ldx, ldx, rows, acc);
            for (int i = 0; i < valid; i++) {
                for (int r = 0; r < rows; r++) {
                    const float *v = acc[i][r].v;
                    float s = fl_lanes_sum(_mm256_loadu_ps(v), _mm256_loadu_ps(v + 8));
                    y[(r0 + r) * ldy + n + i] = s * w->scale;
                }
            }
        }
    }
}

void fl_avx2_mul_float(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                       int n_rows, float *y, int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, false));
    bool plain = w->type == FL_TYPE_F32 || w->type == FL_TYPE_F16 || w->type == FL_TYPE_BF16;
    if (!plain || n_rows > 2)
        float_many(w, n0, n1, x, ldx, n_rows, y, ldy);
    else if (w->type == FL_TYPE_F32)
        float_few(FL_TYPE_F32, w, n0, n1, x, ldx, n_rows, y, ldy);
    else if (w->type == FL_TYPE_F16)
        float_few(FL_TYPE_F16, w, n0, n1, x, ldx, n_rows, y, ldy);
    else
        float_few(FL_TYPE_BF16, w, n0, n1, x, ldx, n_rows, y, ldy);
}
