/* The journal of a run. No more hashes than the bytes can hold or the header allows, the same ones
 * each time, and cutting the last one off leaves the others. */
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_journal_key key = {0};
    size_t a = 0, b = 0;
    uint64_t *hash = malloc(n + 16), *again = malloc(n + 16);
    if (!hash || !again) abort();
    const bool any = fl_journal_parse(p, n, &key, hash, &a);
    if (a > n / 16 || (!any && a > 0) || (any && a > key.n_tensors)) abort();
    if (any && a > 0) {
        if (!fl_journal_parse(p, n - 1, &key, again, &b) || b > a || b + 1 < a) abort();
        if (memcmp(hash, again, b * sizeof *hash) != 0) abort();
    }
    free(hash);
    free(again);
    return 0;
}
