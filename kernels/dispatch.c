#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#if defined(__x86_64__)
#include <cpuid.h>

#include "kernels/x86/x86.h"
#endif

static const char *const tiers[] = {
    "reference",
#if defined(__x86_64__)
    "avx2",      "avxvnni", "avx512vnni",
#endif
    NULL,
};

const char *const *fl_kernels_tiers(void) { return tiers; }

static int tier_index(const char *name)
{
    for (int i = 0; tiers[i]; i++) {
        if (strcmp(tiers[i], name) == 0) return i;
    }
    return -1;
}

#if defined(__x86_64__)
/* Features that __builtin_cpu_supports of gcc 12 or clang 14 does not know. The operating system
 * saves the registers they use when it saves those of AVX2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static void add_x86(fl_kernels *k, int cap)
{
    __builtin_cpu_init();
    if (cap < 1 || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return;
    fl_kernels_avx2(k);
    if (cap >= 2 && has_avxvnni()) fl_kernels_avxvnni(k);
    /* These look at the operating system's part (xgetbv) as well. */
    if (cap >= 3 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        fl_kernels_avx512vnni(k);
}
#endif

bool fl_kernels_init(fl_kernels *k, const char *max_tier)
{
    int cap = max_tier ? tier_index(max_tier) : (int)(sizeof tiers / sizeof *tiers) - 2;
    if (cap < 0) return false;
    fl_kernels_ref(k);
#if defined(__x86_64__)
    add_x86(k, cap);
#endif
    return true;
}
