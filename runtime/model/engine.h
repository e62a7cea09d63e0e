#ifndef FL_MODEL_ENGINE_H
#define FL_MODEL_ENGINE_H

#include "offload/plan.h"
#include "offload/store.h"
#include "runtime/model/buffers.h"
#include "runtime/model/linear.h"
#include "runtime/model/model.h"
#include "runtime/model/routing.h"
#include "runtime/model/state.h"
#include "runtime/model/weights.h"

/* A loaded model: device, dense weights, expert store, one sequence's state, pass buffers. What
 * the plan says is what the load takes: sizes come from the allocation code in counting mode
 * (tests/model/test_engine.c). */

typedef struct fl_engine_params {
    const char *device;    /* NULL = "host" */
    uint64_t vram;         /* cap on device memory in bytes; 0 = all that the device has */
    uint64_t ram;          /* cap on host memory for experts in bytes (fl_plan_input.host_cap), 0 =
                              no host tier; FL_RAM_FREE = what is free now, less a headroom */
    fl_lane_choice lanes;  /* where experts of the host tier are computed */
    fl_policy_kind policy; /* who makes room in the streaming slots */
    bool no_prefetch;      /* nothing is read ahead: for measuring */
    uint64_t link_bytes_s; /* the host device's copies are no faster than this; 0 = no limit */
    const char *less;      /* how a plan that does not fit could, but for the cap; NULL: no way */
    int gpu_layers;        /* pins: fl_plan_input.pin_layers, pin_experts */
    int gpu_experts;
    int64_t n_ctx;        /* tokens; 0 = min(model's, FL_DEFAULT_CONTEXT) */
    int64_t chunk;        /* prefill rows per pass; 0 = 512 */
    uint32_t kv_type;     /* FL_TYPE_F16, FL_TYPE_Q8_0 or FL_TYPE_F32 */
    bool act_f32;         /* float activations instead of the numeric law */
    int threads;          /* 0 = physical cores */
    const char *cpu_tier; /* NULL = best */
    const char *io;       /* I/O backend, NULL = best */
    int block_size;       /* rows of a block pass, at most FL_MAX_BLOCK; 0 = the model's */
    bool mtp;             /* load the MTP block, for drafts; the file has one */
    int held_rows;        /* rows of a held pass (speculation), at most block_size; 0 = none */
    uint64_t stall_ns;    /* a request that has waited that long for a drive or a link that gives
                             nothing fails with FL_E_STALLED; 0 = a minute */
    const char *profile;  /* of expert use: experts get their places by it, and it learns; NULL: all
                             experts are alike */
    const char *trace;    /* file for the routing of all passes, or NULL */
    const char *script;   /* trace that passes follow, or NULL (routing.h) */
    /* Host memory for checkpoints of the state, bytes; 0 = a tenth of this machine's. */
    uint64_t state_budget;
} fl_engine_params;

enum { FL_MAX_BLOCK = 256 };
#define FL_RAM_FREE UINT64_MAX

/* F16 cache, FL_RAM_FREE, everything else "not given". */
fl_engine_params fl_engine_defaults(void);

typedef struct fl_engine {
    const fl_model *model;   /* borrowed: outlives the engine */
    fl_engine_params params; /* resolved: n_ctx, chunk, block_size are final */
    fl_exec exec;
    fl_device *dev;
    fl_io *io, *host_io; /* host_io: of the host tier, NULL where the plan has none */
    fl_plan plan;
    fl_plan_input plan_input; /* what it was made of, for plans of other budgets */
    fl_experts experts;
    fl_store *store;
    fl_weights weights;
    fl_state state;
    fl_buffers buf;
    void *mem[6]; /* device memory of the plan's items, in their order */
    fl_routing routing;
    int n_rows; /* rows of the last pass, whose hidden rows are in buf.x */
} fl_engine;

/* Most tokens, prompt and answer together, that --ctx can be for this model. */
int64_t fl_engine_max_context(const fl_hparams *hp);

/* Resolves the parameters, opens the device and makes the plan; loads nothing. The only calls
 * allowed afterwards are fl_engine_load and fl_engine_close. FL_E_ARG: a context above the
 * model's or the hard limit, a bad chunk; the plan does not fit: as fl_plan_make has it. */
FL_CHECKED fl_status fl_engine_open(fl_engine **out, const fl_model *model,
                                    const fl_engine_params *params, fl_err *err);
/* Takes the planned memory and reads the weights. `progress` may be NULL; else it is called with
 * the bytes that are there, of dense weights and resident experts together. */
FL_CHECKED fl_status fl_engine_load(fl_engine *e,
                                    void (*progress)(void *arg, uint64_t done, uint64_t total),
                                    void *progress_arg, fl_err *err);
/* What a request asks first: FL_E_IO, with what happened, when the model's files are not those that
 * were loaded, and experts are yet to be read from them. */
FL_CHECKED fl_status fl_engine_check_files(const fl_engine *e, fl_err *err);
/* Lines that say who waits for what: for the user after FL_E_STALLED. */
void fl_engine_describe(const fl_engine *e, fl_text *out);
void fl_engine_close(fl_engine **e);

#endif
