/* A profile of expert use, of a model of 2 layers with 8 experts. Byte 0 says what is put right, so
 * that damage behind the checksums is reached as well: 1 both of them. The rest is the file. What
 * is taken can be looked at and counted on, whatever its numbers are. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "offload/profile.h"
#include "runtime/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { HEAD = 72, REST_HASH = 56, HEAD_HASH = 64, KEYS = 16 };

static void need(bool ok)
{
    if (!ok) abort();
}

static void mend(uint8_t *file, size_t n)
{
    uint64_t hash = fl_hash64(file + HEAD, n - HEAD);
    memcpy(file + REST_HASH, &hash, sizeof hash);
    memset(file + HEAD_HASH, 0, sizeof hash);
    hash = fl_hash64(file, HEAD);
    memcpy(file + HEAD_HASH, &hash, sizeof hash);
}

static void use(fl_profile *p)
{
    static const int32_t experts[] = {3};
    uint32_t before[KEYS];
    memcpy(before, fl_profile_heat(p), sizeof before);
    for (int k = 0; k < KEYS; k++) {
        const fl_profile_pair x = fl_profile_together(p, 0, k);
        need(x.both <= x.a && x.both <= x.b && x.a <= 64 && x.b <= 64);
    }
    fl_profile_pass(p, FL_PASS_AR, false, 0);
    fl_profile_layer(p, 0, 1, 1, experts);
    const uint32_t *heat = fl_profile_heat(p);
    need(heat[3] >= before[3] / 4097 * 4096 / 16);
    need(fl_profile_passes(p, FL_PASS_AR) >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_err err = {0};
    fl_profile *profile = NULL;
    if (n == 0) return 0;
    uint8_t *file = malloc(n);
    need(file != NULL && fl_profile_create(&profile, 2, 8, NULL) == FL_OK);
    memcpy(file, p + 1, n - 1);
    if ((p[0] & 1) && n - 1 >= HEAD) mend(file, n - 1);
    if (fl_profile_parse(profile, file, n - 1, "input", &err) != FL_OK)
        need(err.code == FL_E_FORMAT && err.msg[0] != 0 && fl_profile_heat(profile)[0] == 0);
    use(profile);
    fl_profile_destroy(&profile);
    free(file);
    return 0;
}
