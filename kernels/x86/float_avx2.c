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

/* Several activation rows: a piece of W weight rows is turned into floats once and meets all rows
 * of a tile; the lanes of every output wait in memory between pieces. Three weight rows against
 * two activation rows fill the registers, and of the five loads for six products only the two of
 * the activations come from the second cache. */
enum { PIECE = 512, TILE = 48, W = 3 };

typedef struct lanes {
    float v[16];
} lanes;

/* Keeps a loaded vector in a register where the compiler would load it again for each use. */
FL_INLINE __m256 load_once(const float *p)
{
    __m256 v = _mm256_loadu_ps(p);
    __asm__("" : "+x"(v));
    return v;
}

/* acc[i][r] += w[i] . x[r] over n columns, for W weight and n_x (1 or 2) activation rows. */
FL_INLINE void block_wxn(const float w[W][PIECE], const float *x, int64_t ldx, int64_t n, int n_x,
                         lanes *const acc[W])
{
    __m256 s[W][2][2];
    for (int i = 0; i < W; i++) {
        for (int r = 0; r < n_x; r++) {
            s[i][r][0] = _mm256_loadu_ps(acc[i][r].v);
            s[i][r][1] = _mm256_loadu_ps(acc[i][r].v + 8);
        }
    }
    int64_t c = 0;
    for (; c + 16 <= n; c += 16) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256 a = load_once(x + c + 8 * h);
            __m256 b = n_x == 2 ? load_once(x + ldx + c + 8 * h) : a;
#pragma GCC unroll 3
            for (int i = 0; i < W; i++) {
                __m256 u = load_once(w[i] + c + 8 * h);
                s[i][0][h] = _mm256_fmadd_ps(u, a, s[i][0][h]);
                if (n_x == 2) s[i][1][h] = _mm256_fmadd_ps(u, b, s[i][1][h]);
            }
        }
    }
    for (int i = 0; i < W; i++) {
        for (int r = 0; r < n_x; r++) {
            _mm256_storeu_ps(acc[i][r].v, s[i][r][0]);
            _mm256_storeu_ps(acc[i][r].v + 8, s[i][r][1]);
            for (int64_t j = c; j < n; j++) {
                float *lane = &acc[i][r].v[j - c];
                *lane = fmaf(w[i][j], x[r * ldx + j], *lane);
            }
        }
    }
}

static void block_wx2(const float w[W][PIECE], const float *x, int64_t ldx, int64_t n,
                      lanes *const acc[W])
{
    block_wxn(w, x, ldx, n, 2, acc);
}
static void block_wx1(const float w[W][PIECE], const float *x, int64_t ldx, int64_t n,
                      lanes *const acc[W])
{
    block_wxn(w, x, ldx, n, 1, acc);
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

/* W weight rows (the last one repeated where there are fewer) against a tile of activation rows. */
static void float_tile(const fl_mat *w, const fl_type_info *t, const uint8_t *const row[W],
                       const float *x, int64_t ldx, int n_rows, lanes acc[W][TILE])
{
    for (int i = 0; i < W; i++) memset(acc[i], 0, (size_t)n_rows * sizeof(lanes));
    for (int64_t c = 0; c < w->cols; c += PIECE) {
        int64_t n = w->cols - c < PIECE ? w->cols - c : PIECE;
        float piece[W][PIECE];
        for (int i = 0; i < W; i++) to_float(t, w->type, row[i], c, n, piece[i]);
        int r = 0;
        for (; r + 2 <= n_rows; r += 2) {
            lanes *const at[W] = {&acc[0][r], &acc[1][r], &acc[2][r]};
            block_wx2(piece, x + r * ldx + c, ldx, n, at);
        }
        if (r < n_rows) {
            lanes *const at[W] = {&acc[0][r], &acc[1][r], &acc[2][r]};
            block_wx1(piece, x + r * ldx + c, ldx, n, at);
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
        for (int64_t n = n0; n < n1; n += W) {
            int valid = n1 - n < W ? (int)(n1 - n) : W;
            const uint8_t *row[W];
            for (int i = 0; i < W; i++)
                row[i] = (const uint8_t *)w->data + (n + (i < valid ? i : valid - 1)) * bytes;
            lanes acc[W][TILE];
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
