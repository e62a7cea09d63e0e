/*
 * Training kernels of clover-tiny, part two: everything else between the matrix products, row by
 * row, and the optimizer. See kernels_gdn.c for how they are built and run.
 */
#include "kernels.h"

/* ------------------------------------------------------------------ depthwise conv (4 taps), SiLU,
 * l2 norm of q and k
 *
 * Sequence s has T rows from row first[s] of u (row stride ld); tail[s] is the row where the three
 * rows before it begin, or -1 for zeros. Reversed: tap 3 is the current row, taps 2..0 the rows to
 * its right, zeros past the end.
 */
typedef struct {
    int T, nk, nv, ld, reverse;
} conv_shape;

static inline int conv_channels(const conv_shape *sh) { return (2 * sh->nk + sh->nv) * HEAD; }

/* Row of u under tap `tap` of row t, or -1 when it is a zero. */
static inline long conv_source(const conv_shape *sh, int first, int tail, int t, int tap)
{
    int at = sh->reverse ? t + (3 - tap) : t - (3 - tap);
    if (at >= sh->T) return -1;
    if (at < 0) return tail < 0 ? -1 : tail + 3 + at;
    return first + at;
}

static void conv_row(const conv_shape *sh, int first, int tail, int t, const act *u,
                     const float *taps, float *sum)
{
    int channels = conv_channels(sh);
    memset(sum, 0, sizeof(float) * channels);
    for (int tap = 0; tap < 4; tap++) {
        long row = conv_source(sh, first, tail, t, tap);
        if (row < 0) continue;
        const act *in = u + row * sh->ld;
        const float *w = taps + tap * channels;
        for (int i = 0; i < channels; i++) sum[i] += w[i] * get(in[i]);
    }
}

/* w is [channels][4]; the kernels want [4][channels]. */
static float *conv_taps(int channels, const float *w)
{
    float *taps = malloc(sizeof(float) * 4 * channels);
    for (int i = 0; i < channels; i++)
        for (int tap = 0; tap < 4; tap++) taps[tap * channels + i] = w[i * 4 + tap];
    return taps;
}

void conv_forward(int nseq, int T, int nk, int nv, int ld, int reverse, const int *first,
                  const int *tail, const act *u, const float *w, float *q, float *k, float *v)
{
    conv_shape sh = {T, nk, nv, ld, reverse};
    int channels = conv_channels(&sh), key_dim = nk * HEAD, value_dim = nv * HEAD;
    float *taps = conv_taps(channels, w), *sum = malloc(sizeof(float) * channels);
    for (int seq = 0; seq < nseq; seq++)
        for (int t = 0; t < T; t++) {
            long row = (long)seq * T + t;
            conv_row(&sh, first[seq], tail[seq], t, u, taps, sum);
            for (int i = 0; i < channels; i++) sum[i] *= sigmoid(sum[i]);
            for (int h = 0; h < nk; h++) {
                float *x = sum + h * HEAD, *y = sum + key_dim + h * HEAD;
                float q_scale = 1.0f / sqrtf((dot(x, x, HEAD) + 1e-6f) * HEAD),
                      k_scale = 1.0f / sqrtf(dot(y, y, HEAD) + 1e-6f);
                for (int i = 0; i < HEAD; i++) {
                    q[row * key_dim + h * HEAD + i] = x[i] * q_scale;
                    k[row * key_dim + h * HEAD + i] = y[i] * k_scale;
                }
            }
            memcpy(v + row * value_dim, sum + 2 * key_dim, sizeof(float) * value_dim);
        }
    free(taps);
    free(sum);
}

/* out = gradient of x for y = scale * x / |x|. */
static void l2norm_backward(const float *x, const float *dy, float scale, float *out)
{
    float norm = 1.0f / sqrtf(dot(x, x, HEAD) + 1e-6f),
          along = dot(x, dy, HEAD) * norm * norm * norm;
    for (int i = 0; i < HEAD; i++) out[i] = scale * (dy[i] * norm - x[i] * along);
}

/* Adds to du (float32, dense [rows][channels]) and dw [channels][4]. */
void conv_backward(int nseq, int T, int nk, int nv, int ld, int reverse, const int *first,
                   const int *tail, const act *u, const float *w, const float *dq, const float *dk,
                   const float *dv, float *du, float *dw)
{
    conv_shape sh = {T, nk, nv, ld, reverse};
    int channels = conv_channels(&sh), key_dim = nk * HEAD, value_dim = nv * HEAD;
    float *taps = conv_taps(channels, w), *d_taps = calloc(4 * channels, sizeof(float));
    float *sum = malloc(sizeof(float) * channels), *slope = malloc(sizeof(float) * channels),
          *d = malloc(sizeof(float) * channels);
    for (int seq = 0; seq < nseq; seq++)
        for (int t = 0; t < T; t++) {
            long row = (long)seq * T + t;
            conv_row(&sh, first[seq], tail[seq], t, u, taps, sum);
            for (int i = 0; i < channels; i++) {
                float s = sigmoid(sum[i]);
                slope[i] = s * (1.0f + sum[i] * (1.0f - s));
                sum[i] *= s;
            }
            for (int h = 0; h < nk; h++) {
                l2norm_backward(sum + h * HEAD, dq + row * key_dim + h * HEAD, 1.0f / sqrtf(HEAD),
                                d + h * HEAD);
                l2norm_backward(sum + key_dim + h * HEAD, dk + row * key_dim + h * HEAD, 1.0f,
                                d + key_dim + h * HEAD);
            }
            memcpy(d + 2 * key_dim, dv + row * value_dim, sizeof(float) * value_dim);
            for (int i = 0; i < channels; i++) d[i] *= slope[i];
            for (int tap = 0; tap < 4; tap++) {
                long source = conv_source(&sh, first[seq], tail[seq], t, tap);
                if (source < 0) continue;
                const act *in = u + source * ld;
                float *to = du + source * channels, *wt = taps + tap * channels,
                      *dt = d_taps + tap * channels;
                for (int i = 0; i < channels; i++) {
                    to[i] += wt[i] * d[i];
                    dt[i] += get(in[i]) * d[i];
                }
            }
        }
    for (int i = 0; i < channels; i++)
        for (int tap = 0; tap < 4; tap++) dw[i * 4 + tap] += d_taps[tap * channels + i];
    free(taps);
    free(d_taps);
    free(sum);
    free(slope);
    free(d);
}

/* ------------------------------------------------------------------ GDN gates: g = -exp(A)
 * softplus(a + dt), beta = sigmoid(b) */

static inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

void gates_forward(int rows, int nv, int ld, const act *a, const act *b, const float *a_log,
                   const float *dt, float *g, float *beta)
{
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < nv; h++) {
            g[r * nv + h] = -expf(a_log[h]) * softplus(get(a[(long)r * ld + h]) + dt[h]);
            beta[r * nv + h] = sigmoid(get(b[(long)r * ld + h]));
        }
}

void gates_backward(int rows, int nv, int ld, const act *a, const float *a_log, const float *dt,
                    const float *g, const float *beta, const float *dg, const float *dbeta, act *da,
                    act *db, float *d_a_log, float *d_dt)
{
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < nv; h++) {
            int at = r * nv + h;
            float slope = -expf(a_log[h]) * sigmoid(get(a[(long)r * ld + h]) + dt[h]) * dg[at];
            da[(long)r * ld + h] = put(slope);
            db[(long)r * ld + h] = put(dbeta[at] * beta[at] * (1.0f - beta[at]));
            d_a_log[h] += dg[at] * g[at];
            d_dt[h] += slope;
        }
}

/* ------------------------------------------------------------------ backward branch: o += mix * r
 * per value head */

void mix_forward(int rows, int nv, const float *mix, const float *r, float *o)
{
    for (long row = 0; row < rows; row++)
        for (int h = 0; h < nv; h++)
            for (int i = 0; i < HEAD; i++)
                o[(row * nv + h) * HEAD + i] += mix[h] * r[(row * nv + h) * HEAD + i];
}

void mix_backward(int rows, int nv, const float *mix, const float *r, const float *d_o, float *dr,
                  float *d_mix)
{
    for (long row = 0; row < rows; row++)
        for (int h = 0; h < nv; h++) {
            long at = (row * nv + h) * HEAD;
            d_mix[h] += dot(d_o + at, r + at, HEAD);
            for (int i = 0; i < HEAD; i++) dr[at + i] = mix[h] * d_o[at + i];
        }
}

/* ------------------------------------------------------------------ gated norm: y = rmsnorm(o) * w
 * * silu(z) per value head */

void gated_norm_forward(int rows, int nv, int ld, const float *o, const act *z, const float *w,
                        act *y)
{
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < nv; h++) {
            const float *x = o + (r * nv + h) * HEAD;
            const act *gate = z + r * ld + h * HEAD;
            float scale = 1.0f / sqrtf(dot(x, x, HEAD) / HEAD + 1e-6f);
            for (int i = 0; i < HEAD; i++) {
                float s = get(gate[i]);
                y[(r * nv + h) * HEAD + i] = put(x[i] * scale * w[i] * s * sigmoid(s));
            }
        }
}

/* dz has the row stride of z; dw is added to. */
void gated_norm_backward(int rows, int nv, int ld, const float *o, const act *z, const float *w,
                         const act *dy, float *d_o, act *dz, float *dw)
{
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < nv; h++) {
            long at = (r * nv + h) * HEAD;
            const float *x = o + at;
            const act *gate = z + r * ld + h * HEAD;
            act *d_gate = dz + r * ld + h * HEAD;
            float scale = 1.0f / sqrtf(dot(x, x, HEAD) / HEAD + 1e-6f), along = 0, inner[HEAD];
            for (int i = 0; i < HEAD; i++) {
                float zi = get(gate[i]), s = sigmoid(zi), grad = get(dy[at + i]),
                      normed = x[i] * scale;
                d_gate[i] = put(grad * normed * w[i] * s * (1.0f + zi * (1.0f - s)));
                float through = grad * zi * s;
                dw[i] += through * normed;
                inner[i] = through * w[i];
                along += inner[i] * x[i];
            }
            along *= scale * scale * scale / HEAD;
            for (int i = 0; i < HEAD; i++) d_o[at + i] = inner[i] * scale - x[i] * along;
        }
}

/* ------------------------------------------------------------------ RMS norm with weight 1 + w */

void rms_forward(int rows, int width, const float *x, const float *w, act *y)
{
    for (long r = 0; r < rows; r++) {
        const float *in = x + r * width;
        float scale = 1.0f / sqrtf(dot(in, in, width) / width + 1e-6f);
        for (int i = 0; i < width; i++) y[r * width + i] = put(in[i] * scale * (1.0f + w[i]));
    }
}

/* dx is added to; dw is added to. */
void rms_backward(int rows, int width, const float *x, const float *w, const act *dy, float *dx,
                  float *dw)
{
    for (long r = 0; r < rows; r++) {
        const float *in = x + r * width;
        const act *grad = dy + r * width;
        float along = 0, scale = 1.0f / sqrtf(dot(in, in, width) / width + 1e-6f);
        for (int i = 0; i < width; i++) along += in[i] * get(grad[i]) * (1.0f + w[i]);
        along *= scale * scale * scale / width;
        for (int i = 0; i < width; i++) {
            float gi = get(grad[i]);
            dx[r * width + i] += gi * (1.0f + w[i]) * scale - in[i] * along;
            dw[i] += gi * in[i] * scale;
        }
    }
}

/* ------------------------------------------------------------------ attention: norm of each query
 * and key head, then RoPE
 *
 * x: rows of `heads` heads, head h at x + row*ld + h*head_stride, `dim` wide; y is dense
 * [rows][heads][dim]. cos and sin: [rows][rot/2]. Pairs are (j, j + rot/2).
 */
void qk_forward(int rows, int heads, int dim, int rot, int ld, int head_stride, const act *x,
                const float *w, const float *cosine, const float *sine, act *y)
{
    float normed[512];
    int half = rot / 2;
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            const act *in = x + r * ld + h * head_stride;
            act *out = y + (r * heads + h) * dim;
            float square = 0;
            for (int i = 0; i < dim; i++) square += get(in[i]) * get(in[i]);
            float scale = 1.0f / sqrtf(square / dim + 1e-6f);
            for (int i = 0; i < dim; i++) normed[i] = get(in[i]) * scale * (1.0f + w[i]);
            for (int j = 0; j < half; j++) {
                float c = cosine[r * half + j], s = sine[r * half + j], a = normed[j],
                      b = normed[j + half];
                normed[j] = a * c - b * s;
                normed[j + half] = b * c + a * s;
            }
            for (int i = 0; i < dim; i++) out[i] = put(normed[i]);
        }
}

/* dy dense like y; dx strided like x; dw is added to. */
void qk_backward(int rows, int heads, int dim, int rot, int ld, int head_stride, const act *x,
                 const float *w, const float *cosine, const float *sine, const act *dy, act *dx,
                 float *dw)
{
    float grad[512];
    int half = rot / 2;
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            const act *in = x + r * ld + h * head_stride, *top = dy + (r * heads + h) * dim;
            act *out = dx + r * ld + h * head_stride;
            float square = 0, along = 0;
            for (int i = 0; i < dim; i++) {
                grad[i] = get(top[i]);
                square += get(in[i]) * get(in[i]);
            }
            for (int j = 0; j < half; j++) {
                float c = cosine[r * half + j], s = sine[r * half + j], a = grad[j],
                      b = grad[j + half];
                grad[j] = a * c + b * s;
                grad[j + half] = b * c - a * s;
            }
            float scale = 1.0f / sqrtf(square / dim + 1e-6f);
            for (int i = 0; i < dim; i++) {
                dw[i] += grad[i] * get(in[i]) * scale;
                grad[i] *= 1.0f + w[i];
                along += grad[i] * get(in[i]);
            }
            along *= scale * scale * scale / dim;
            for (int i = 0; i < dim; i++) out[i] = put(grad[i] * scale - get(in[i]) * along);
        }
}

/* y = o * sigmoid(gate) per attention head; gate strided as above, o and y dense. */
void out_gate_forward(int rows, int heads, int dim, int ld, int head_stride, const act *o,
                      const act *gate, act *y)
{
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < dim; i++) {
                long at = (r * heads + h) * dim + i;
                y[at] = put(get(o[at]) * sigmoid(get(gate[r * ld + h * head_stride + i])));
            }
}

void out_gate_backward(int rows, int heads, int dim, int ld, int head_stride, const act *o,
                       const act *gate, const act *dy, act *d_o, act *d_gate)
{
    for (long r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < dim; i++) {
                long at = (r * heads + h) * dim + i, at_gate = r * ld + h * head_stride + i;
                float s = sigmoid(get(gate[at_gate])), grad = get(dy[at]);
                d_o[at] = put(grad * s);
                d_gate[at_gate] = put(grad * get(o[at]) * s * (1.0f - s));
            }
}

/* ------------------------------------------------------------------ SwiGLU: in [rows][2*width] =
 * gate | up */

void swiglu_forward(int rows, int width, const act *in, act *out)
{
    for (long r = 0; r < rows; r++) {
        const act *gate = in + r * 2 * width, *up = gate + width;
        for (int i = 0; i < width; i++) {
            float x = get(gate[i]);
            out[r * width + i] = put(x * sigmoid(x) * get(up[i]));
        }
    }
}

void swiglu_backward(int rows, int width, const act *in, const act *d_out, act *d_in)
{
    for (long r = 0; r < rows; r++) {
        const act *gate = in + r * 2 * width, *up = gate + width;
        act *d_gate = d_in + r * 2 * width, *d_up = d_gate + width;
        for (int i = 0; i < width; i++) {
            float x = get(gate[i]), s = sigmoid(x), grad = get(d_out[r * width + i]);
            d_gate[i] = put(grad * get(up[i]) * s * (1.0f + x * (1.0f - s)));
            d_up[i] = put(grad * x * s);
        }
    }
}

/* ------------------------------------------------------------------ mixture of experts
 *
 * Slots per row: top_k routed experts, then the shared expert, which counts as expert number
 * `experts`. Rows are sorted by expert; each expert's list is padded to a multiple of PAD rows so
 * that the matrix products see few distinct shapes.
 */
enum { PAD = 32, MAX_EXPERTS = 512 };

/* choice, place: [rows][top_k+1]; source: row of each sorted place or -1; begin: [experts+2]. Ties
 * go to the lower index. */
void moe_route(int rows, int experts, int top_k, const float *logits, int *choice, int *place,
               int *source, int *begin)
{
    int slots = top_k + 1, count[MAX_EXPERTS + 1] = {0}, next[MAX_EXPERTS + 1];
    for (long r = 0; r < rows; r++) {
        unsigned char used[MAX_EXPERTS] = {0};
        for (int s = 0; s < top_k; s++) {
            int best = -1;
            for (int e = 0; e < experts; e++)
                if (!used[e] && (best < 0 || logits[r * experts + e] > logits[r * experts + best]))
                    best = e;
            used[best] = 1;
            choice[r * slots + s] = best;
            count[best]++;
        }
        choice[r * slots + top_k] = experts;
        count[experts]++;
    }
    begin[0] = 0;
    for (int e = 0; e <= experts; e++) begin[e + 1] = begin[e] + (count[e] + PAD - 1) / PAD * PAD;
    for (int i = 0; i < begin[experts + 1]; i++) source[i] = -1;
    memcpy(next, begin, sizeof(int) * (experts + 1));
    for (long i = 0; i < (long)rows * slots; i++) {
        place[i] = next[choice[i]]++;
        source[place[i]] = (int)(i / slots);
    }
}

void moe_gather(int places, int width, const act *x, const int *source, act *y)
{
    for (long p = 0; p < places; p++)
        if (source[p] < 0)
            memset(y + p * width, 0, sizeof(act) * width);
        else
            memcpy(y + p * width, x + (long)source[p] * width, sizeof(act) * width);
}

/* y[row] += sum over slots of weight * expert output; weight may be null (all 1). */
void moe_combine(int rows, int slots, int width, const act *out, const int *place,
                 const float *weight, float *y)
{
    for (long r = 0; r < rows; r++)
        for (int s = 0; s < slots; s++) {
            const act *from = out + (long)place[r * slots + s] * width;
            float w = weight ? weight[r * slots + s] : 1.0f;
            for (int i = 0; i < width; i++) y[r * width + i] += w * get(from[i]);
        }
}

/* d_out must be zeroed by the caller (padding rows stay zero). */
void moe_combine_backward(int rows, int slots, int width, const act *out, const int *place,
                          const float *weight, const float *dy, act *d_out, float *d_weight)
{
    for (long r = 0; r < rows; r++)
        for (int s = 0; s < slots; s++) {
            long at = (long)place[r * slots + s] * width;
            float w = weight[r * slots + s], sum = 0;
            for (int i = 0; i < width; i++) {
                float grad = dy[r * width + i];
                d_out[at + i] = put(w * grad);
                sum += grad * get(out[at + i]);
            }
            d_weight[r * slots + s] = sum;
        }
}

/* ------------------------------------------------------------------ conversion and optimizer */

void to_act(int rows, int width, int ld, const float *in, act *out)
{
    for (long r = 0; r < rows; r++)
        for (int i = 0; i < width; i++) out[r * ld + i] = put(in[r * width + i]);
}

/* Sum of squares of the gradient averaged over `procs` processes; grads[p] points at act (wide = 0)
 * or float data. */
double grad_square(long n, int procs, int wide, const void **grads)
{
    double total = 0;
    float scale = 1.0f / procs;
    for (long begin = 0; begin < n; begin += 4096) {
        long end = begin + 4096 < n ? begin + 4096 : n;
        float sum = 0;
        for (long i = begin; i < end; i++) {
            float grad = 0;
            for (int p = 0; p < procs; p++)
                grad += wide ? ((const float *)grads[p])[i] : get(((const act *)grads[p])[i]);
            sum += grad * grad;
        }
        total += sum * (double)(scale * scale);
    }
    return total;
}

/* AdamW over n parameters; scale multiplies the sum of the processes' gradients. `copy` receives
 * the act-typed weights. */
void adamw(long n, int procs, int wide, const void **grads, float *param, act *copy, float *mean,
           float *var, float scale, float lr, float beta1, float beta2, float correct1,
           float correct2, float decay)
{
    const void *second = procs > 1 ? grads[1] : 0;
    for (long i = 0; i < n; i++) {
        float grad = wide ? ((const float *)grads[0])[i] : get(((const act *)grads[0])[i]);
        if (second) grad += wide ? ((const float *)second)[i] : get(((const act *)second)[i]);
        for (int p = 2; p < procs; p++)
            grad += wide ? ((const float *)grads[p])[i] : get(((const act *)grads[p])[i]);
        grad *= scale;
        mean[i] = beta1 * mean[i] + (1 - beta1) * grad;
        var[i] = beta2 * var[i] + (1 - beta2) * grad * grad;
        param[i] -=
            lr * (mean[i] * correct1 / (sqrtf(var[i] * correct2) + 1e-8f) + decay * param[i]);
        if (copy) copy[i] = put(param[i]);
    }
}
