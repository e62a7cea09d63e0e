/* What the type of the KV cache costs: mean KL divergence of next-token distributions from those
 * with an F32 cache, with the same weights.
 *
 *   kv_loss MODEL HELDOUT.jsonl [POSITIONS] */
#include <stdio.h>
#include <stdlib.h>

#include "quant/law.h"
#include "tests/eval/common.h"

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) ev_die("usage: kv_loss MODEL HELDOUT.jsonl [POSITIONS]");
    static const uint32_t types[] = {FL_TYPE_F16, FL_TYPE_Q8_0};
    const int64_t positions = argc == 4 ? atoll(argv[3]) : 2048;
    ev_set set;
    ev_set_load(&set, argv[2]);
    ev_measured ref, got;
    printf("%lld rows of each kind\n"
           "| KV cache | KL causal | same top 1 | KL block | same top 1 |\n"
           "| --- | --- | --- | --- | --- |\n",
           (long long)positions);
    ev_measure(&ref, argv[1], &set, positions, false, fl_law_option_h, FL_TYPE_F32);
    for (int i = 0; i < 2; i++) {
        ev_measure(&got, argv[1], &set, positions, false, fl_law_option_h, types[i]);
        const ev_figure c = ev_compare(&ref.causal, &got.causal);
        const ev_figure b = ev_compare(&ref.block, &got.block);
        printf("| %s | %.2e | %.2f %% | %.2e | %.2f %% |\n", fl_type_get(types[i])->name, c.kl,
               c.top1, b.kl, b.top1);
        fflush(stdout);
        ev_forget(&got);
    }
    ev_forget(&ref);
    ev_set_free(&set);
    return 0;
}
