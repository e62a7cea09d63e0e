/* Double-precision functions of the law (FORMAT.md, L7): plain IEEE operations in a written order,
 * so that their bits do not depend on the code that a C library picks for a CPU. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "quant/law.h"

/* ln 2 and pi / 2 in parts; the leading ones have so few bits that n times them is exact for
 * |n| < 2^20. */
static const double LN2_HI = 0x1.62e42feep-1, LN2_LO = 0x1.a39ef35793c76p-33;
static const double PIO2_1 = 0x1.921fb544p+0, PIO2_2 = 0x1.0b4611a6p-34,
                    PIO2_3 = 0x1.3198a2e037073p-69;

/* c[0] + x (c[1] + x (... c[n - 1])). */
static double horner(const double *c, int n, double x)
{
    double p = c[n - 1];
    for (int i = n - 2; i >= 0; i--) p = p * x + c[i];
    return p;
}

double fl_law_log64(double x)
{
    static const double odd[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    if (x == 0.0) return -INFINITY;
    int e;
    double m = frexp(x, &e); /* [0.5, 1) */
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2.0;
        e--;
    }
    /* log(m) = 2 atanh(z), |z| <= 0.1716; the first term left out is below 2^-58 of the sum. */
    const double z = (m - 1.0) / (m + 1.0), s = z * z, z2 = 2.0 * z;
    return (double)e * LN2_HI + (z2 + (z2 * (s * horner(odd, 10, s)) + (double)e * LN2_LO));
}

double fl_law_exp64(double x)
{
    static const double inv[] = {1.0,
                                 1.0,
                                 1.0 / 2,
                                 1.0 / 6,
                                 1.0 / 24,
                                 1.0 / 120,
                                 1.0 / 720,
                                 1.0 / 5040,
                                 1.0 / 40320,
                                 1.0 / 362880,
                                 1.0 / 3628800,
                                 1.0 / 39916800,
                                 1.0 / 479001600,
                                 1.0 / 6227020800.0};
    if (isnan(x)) return x;
    x = x > 800.0 ? 800.0 : x;
    x = x < -800.0 ? -800.0 : x;
    const double n = rint(x * 0x1.71547652b82fep+0);
    const double r = (x - n * LN2_HI) - n * LN2_LO;
    return ldexp(horner(inv, 14, r), (int)n);
}

void fl_law_sincos64(double x, double *sine, double *cosine)
{
    static const double sc[] = {-1.0 / 6,
                                1.0 / 120,
                                -1.0 / 5040,
                                1.0 / 362880,
                                -1.0 / 39916800,
                                1.0 / 6227020800.0,
                                -1.0 / 1307674368000.0,
                                1.0 / 355687428096000.0};
    static const double cc[] = {
        1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const double n = rint(x * 0x1.45f306dc9c883p-1);
    const double a = x - n * PIO2_1, w = n * PIO2_2; /* both exact */
    const double hi = a - w;
    const double r = hi + (((a - hi) - w) - n * PIO2_3);
    const double z = r * r;
    const double s = r + r * (z * horner(sc, 8, z));
    const double h = 0.5 * z, one = 1.0 - h;
    const double c = one + (((1.0 - one) - h) + z * (z * horner(cc, 7, z)));
    const int64_t quadrant = (int64_t)n & 3;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}

/* A sum of two doubles, |lo| <= half a unit in the last place of hi. */
typedef struct pair {
    double hi, lo;
} pair;

static pair times(pair a, pair b)
{
    const double p = a.hi * b.hi;
    const double e = fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi);
    const double hi = p + e;
    return (pair){hi, (p - hi) + e};
}

void fl_law_rope_freq(double base, int n, double *freq)
{
    /* The n-th root of 1 / base, with one Newton step in pairs; then its powers. */
    pair root = {fl_law_exp64(-fl_law_log64(base) / n), 0.0}, p = {base, 0.0};
    for (int i = 0; i < n; i++) p = times(p, root);
    root.lo = -root.hi * (((p.hi - 1.0) + p.lo) / n);
    p = (pair){1.0, 0.0};
    for (int j = 0; j < n; j++) {
        freq[j] = p.hi;
        p = times(p, root);
    }
}
