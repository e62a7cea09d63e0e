/* What the rounding of weights costs: mean KL divergence of next-token distributions from those of
 * the source's own weights with float activations.
 *
 *   quant_loss MODEL HELDOUT.jsonl WORKDIR [POSITIONS]
 *
 * MODEL: safetensors or a GGUF with float weights. The written files run as users run them (the
 * numeric law), and Q4_K with float activations too, which shows the weights' part alone. */
#include <stdio.h>
#include <stdlib.h>

#include "quant/law.h"
#include "tests/eval/common.h"

static void one(const char *label, const char *path, const ev_set *set, const ev_measured *ref,
                int64_t positions, bool act_f32)
{
    ev_measured m;
    ev_measure(&m, path, set, positions, act_f32, fl_law_option_h, FL_TYPE_F32);
    const ev_figure c = ev_compare(&ref->causal, &m.causal), b = ev_compare(&ref->block, &m.block);
    printf("| %s | %.3e | %.2f %% | %.3e | %.2f %% |\n", label, c.kl, c.top1, b.kl, b.top1);
    fflush(stdout);
    ev_forget(&m);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) ev_die("usage: quant_loss MODEL HELDOUT.jsonl WORKDIR [POSITIONS]");
    static const char *const types[] = {"bf16", "q8_0", "q4_k"};
    const int64_t positions = argc == 5 ? atoll(argv[4]) : 4096;
    ev_set set;
    ev_measured ref;
    char path[4096];
    ev_set_load(&set, argv[2]);
    snprintf(path, sizeof path, "%s/quant_loss.gguf", argv[3]);
    ev_measure(&ref, argv[1], &set, positions, true, false, FL_TYPE_F32);
    printf("%lld causal and %lld block rows\n"
           "| weights | KL causal | same top 1 | KL block | same top 1 |\n"
           "| --- | --- | --- | --- | --- |\n",
           (long long)ref.causal.n, (long long)ref.block.n);
    for (int i = 0; i < 3; i++) {
        ev_quantize(argv[1], path, types[i]);
        one(types[i], path, &set, &ref, positions, false);
    }
    one("q4_k, float activations", path, &set, &ref, positions, true);
    ev_forget(&ref);
    ev_set_free(&set);
    remove(path);
    return 0;
}
