#ifndef FL_OFFLOAD_FETCH_H
#define FL_OFFLOAD_FETCH_H

#include "offload/io.h"
#include "offload/store.h"
#include "runtime/device/device.h"

/* Brings experts from the file into device memory: several at once, each through a host buffer of
 * its own (a stage): its extents are read into the stage, then copied to the device while other
 * reads go on. Used by the store alone, for loading and for streaming; has no thread of its own
 * and moves on when it is called. The io and the device's copy stream are its own while it lives;
 * it belongs to the thread that owns them. */
typedef struct fl_fetch fl_fetch;

/* n_stages buffers of stage_bytes (a multiple of 4,096) in anonymous memory, registered with io.
 * stage_bytes is at least the largest expert + FL_PLAN_STAGE_SLACK. */
FL_CHECKED fl_status fl_fetch_create(fl_fetch **out, fl_device *dev, fl_io *io, int n_stages,
                                     uint64_t stage_bytes, fl_err *err);
/* Waits for what is under way; on a drive that hangs everything is left as it is. */
void fl_fetch_destroy(fl_fetch **f);

/* Host memory that it has mapped. */
uint64_t fl_fetch_bytes(const fl_fetch *f);
/* Stages that are free now. */
int fl_fetch_free(const fl_fetch *f);
/* Starts one expert; needs a free stage (assert). Its parts go to dst, each at a multiple of 64.
 * `x` and dst must stay until the fetch is finished. A failure is told by fl_fetch_next. */
void fl_fetch_start(fl_fetch *f, const fl_expert_place *x, uint8_t *dst, uint64_t tag);
/* Moves everything on. True: the fetch *tag is finished and its stage free; *st says how, with
 * the message in err. False: none is finished, *st is FL_OK. With `block` waits for one (there must
 * be one under way, assert); false then only with FL_E_STALLED, as fl_io_wait and fl_device_wait
 * have it: what is under way stays so. */
bool fl_fetch_next(fl_fetch *f, bool block, uint64_t *tag, fl_status *st, fl_err *err);
/* How far the fetch of that tag is, for a report: "3 reads to come", "being copied". */
void fl_fetch_describe(const fl_fetch *f, uint64_t tag, fl_text *out);

/* Bytes of a part's place in an expert, rounded up to 64. */
static inline uint64_t fl_fetch_padded(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

#endif
