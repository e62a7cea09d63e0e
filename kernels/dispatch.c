#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/x86/x86.h"
#endif

static const char *const tiers[] = {
    "reference",
#if defined(__x86_64__)
    "avx2",      "avxvnni", "avx512vnni", "amx",
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

/* Tiles of 16 rows of 64 bytes and products of bytes, in a system that saves them. */
static bool has_amx(void)
{
    const unsigned tile_and_int8 = 3u << 24, tile_state = 3u << 17, osxsave = 1u << 27;
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tile_and_int8) != tile_and_int8)
        return false;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & tile_state) != tile_state) return false;
    /* Palette 1: bytes of a row, tiles; rows. */
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && (b & 0xffff) >= 64 && b >> 16 >= 8 &&
           (c & 0xffff) >= 16;
}

/* Linux gives a process the large tile state when it asks (from 5.16 on). Threads inherit it, and
 * asking again changes nothing. */
static bool may_use_tiles(void)
{
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
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
    else
        return;
    if (cap >= 4 && has_amx() && may_use_tiles()) fl_kernels_amx(k);
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
