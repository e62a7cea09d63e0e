#ifndef FL_OFFLOAD_PREDICT_H
#define FL_OFFLOAD_PREDICT_H

#include "offload/lanes.h"
#include "offload/plan.h"
#include "offload/rates.h"

/* How fast a plan will be: hits by tier, bytes by link and time of a pass, from the plan, how often
 * experts are used and measured rates. Whole numbers throughout; a function of its input alone.
 *
 * An expert is in a pass with a chance in proportion to its heat + 1, never above 1, so that a
 * layer's chances add up to the experts of a layer that a pass uses. Hence the expected uses and
 * bytes of each tier. The pass then takes
 *
 *     compute   the dense part, and each used expert once for all its rows; on a device with
 *               processors of its own, experts that the CPU computes from host memory run beside
 *               those of the device
 *     move      the longer of: copies to the device (experts from host memory that are not computed
 *               there, and all from the file); reads from the file
 *     time      e + max(compute, move - e), where e is the share of move that is not begun ahead
 *
 * Experts still in a streaming slot from the pass before are not counted as hits, unless the slots
 * hold all that stream. Of the host tier so much is copied, in 4,096ths, as is fastest, unless it
 * is fixed. Held by tests/offload/test_predict.c. */

typedef enum fl_predict_kind {
    FL_PREDICT_AR,
    FL_PREDICT_BLOCK,
    FL_PREDICT_SPEC,
    FL_PREDICT_PREFILL,
    FL_PREDICT_KINDS
} fl_predict_kind;

/* How the passes of one kind look, on average. */
typedef struct fl_predict_pass {
    int rows;               /* activation rows; 0: there are no such passes */
    int64_t tokens_milli;   /* tokens that a pass brings, in thousandths */
    int64_t distinct_milli; /* experts of a layer that a pass uses, in thousandths */
} fl_predict_pass;

typedef struct fl_predict_input {
    const uint32_t *heat; /* [n_layer * n_expert]: how often each is used; NULL: all alike */
    const fl_rates *rates;
    fl_predict_pass pass[FL_PREDICT_KINDS];
    bool shared_pool;    /* the device computes on the CPU's threads: the host device */
    fl_lane_choice lane; /* who computes experts that are in host memory; AUTO: what is fastest */
    /* Of the bytes moved, those whose move begins before they are needed; 0: no prefetch. The
     * second is for prefill passes, the first for all others. */
    int ahead_permille, prefill_ahead_permille;
} fl_predict_input;

/* What a figure could not be had without: bits of fl_prediction.lacks. */
enum {
    FL_LACKS_COMPUTE = 1 << 0, /* dense_pass_ns, cpu_expert_ns; device_bytes_s for a real device */
    FL_LACKS_LINK = 1 << 1,
    FL_LACKS_FILE = 1 << 2
};

typedef struct fl_predicted_pass {
    uint64_t uses_milli[FL_TIER_DEVICE + 1]; /* experts of all layers by fl_tier, in thousandths */
    uint64_t copy_bytes, read_bytes;         /* host to device; from the file */
    uint64_t compute_ns, copy_ns, read_ns;
    uint64_t pass_ns;            /* 0: not known, see lacks */
    uint64_t tokens_per_s_milli; /* 0: not known, or no such passes */
} fl_predicted_pass;

typedef struct fl_prediction {
    fl_predicted_pass kind[FL_PREDICT_KINDS];
    unsigned lacks;
} fl_prediction;

/* Experts of a layer that `rows` rows use, in thousandths: as many as 1 + (rows - 1) * 9 / 31 rows
 * would that choose on their own and alike. 32 rows so use the 69.5 of 256 (top 8) that were
 * published for LLaDA2.0-mini. */
int64_t fl_predict_distinct(int n_expert, int top_k, int rows);

void fl_predict(const fl_plan *plan, const fl_predict_input *in, fl_prediction *out);

/* A budget, and what it would bring. */
typedef struct fl_predict_point {
    uint64_t device_cap, host_cap;
    int n_resident, n_host;
    fl_prediction result;
} fl_predict_point;

enum { FL_PREDICT_MAX_POINTS = 8 };
/* The budgets above that of `in` by 1, 2, 3, ... GiB of device memory (or of host memory, `host`),
 * the last of them one that holds everything; n of them, none where everything is held already or
 * there is no host tier.
 * `in`, with heat and host_bytes, as the plan was made of. FL_E_NOMEM. */
FL_CHECKED fl_status fl_predict_curve(const fl_plan_input *in, bool host, const fl_predict_input *p,
                                      fl_predict_point out[FL_PREDICT_MAX_POINTS], int *n,
                                      fl_err *err);

#endif
