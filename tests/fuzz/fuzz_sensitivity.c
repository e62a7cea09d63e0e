/* A file of sensitivities: what is taken is sorted, has no name twice and no value below 0. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/sensitivity_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_sensitivity s;
    fl_err err = {0};
    fl_conv_tensor t = {.name = "blk.0.attn_q.weight", .class = FL_CONV_ATTENTION};
    bool known;
    if (fl_sensitivity_parse(&s, "x", (const char *)p, n, &err) != FL_OK) {
        if (err.code != FL_E_FORMAT || !err.msg[0]) abort();
        return 0;
    }
    for (int i = 0; i < s.n; i++) {
        if (!isfinite(s.line[i].nats) || s.line[i].nats < 0) abort();
        if (i > 0 && strcmp(s.line[i - 1].name, s.line[i].name) >= 0) abort();
    }
    if (!(fl_sensitivity_of(&s, &t, &known) >= 0)) abort();
    fl_sensitivity_fini(&s);
    return 0;
}
