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
    "avx2",
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
/* clang 14 has no name for this feature in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool fl_kernels_init(fl_kernels *k, const char *max_tier)
{
    int cap = max_tier ? tier_index(max_tier) : (int)(sizeof tiers / sizeof *tiers) - 2;
    if (cap < 0) return false;
    fl_kernels_ref(k);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (cap >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        fl_kernels_avx2(k);
#endif
    return true;
}
