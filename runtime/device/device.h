#ifndef FL_DEVICE_H
#define FL_DEVICE_H

#include <stdbool.h>

#include "runtime/base/arena.h"

/* A device: memory with a hard cap, and a copy stream. The host device is a full citizen: its own
 * capped memory, a copy engine thread with an optional rate limit standing for a PCIe link; the
 * CPU kernels compute on it. One thread at a time owns a device (the inference thread); only the
 * budget may be read by others while the owner is quiet. Held by tests/device/test_device.c. */
typedef struct fl_device fl_device;

typedef struct fl_device_config {
    const char *kind;      /* "host"; NULL = "host" */
    uint64_t memory_cap;   /* bytes; 0 = what is free now (MemAvailable, the cgroup's limit) */
    uint64_t link_bytes_s; /* copy engine's rate limit, bytes per second; 0 = none */
    int refuse_pin;        /* the Nth chunk that is to be pinned, and all behind it, are refused, as
                              a machine may; 0 = none: for tests */
} fl_device_config;

/* FL_E_UNSUPPORTED for a kind that this build does not have. */
FL_CHECKED fl_status fl_device_open(fl_device **out, const fl_device_config *cfg, fl_err *err);
/* Waits for copies. All memory must have been freed (assert). */
void fl_device_close(fl_device **dev);
const char *fl_device_kind(const fl_device *dev);
/* cap, used, peak of the device's memory: exactly the bytes asked for, not rounded up. */
const fl_budget *fl_device_budget(const fl_device *dev);

/* Device memory, 4,096-aligned, zeroed; counted against the cap. `what` names it in errors.
 * bytes > 0. FL_E_NOMEM: cap or machine exhausted. */
FL_CHECKED fl_status fl_device_alloc(fl_device *dev, uint64_t bytes, const char *what, void **ptr,
                                     fl_err *err);
/* Waits for copies, frees and sets *ptr to NULL; NULL is allowed. */
void fl_device_free(fl_device *dev, void **ptr);

/* Copies into device memory run in order on the device's copy stream. A ticket is a point on that
 * stream; tickets grow. `src` and `dst` must stay untouched until the ticket is reached; `dst`
 * lies inside one allocation of this device (assert). Blocks only while 256 copies are queued. */
typedef uint64_t fl_ticket;
FL_CHECKED fl_status fl_device_copy_async(fl_device *dev, void *dst, const void *src,
                                          uint64_t bytes, fl_ticket *ticket, fl_err *err);
/* True when the copy behind the ticket (and all before it) is done. Ticket 0 is always done. */
bool fl_device_done(const fl_device *dev, fl_ticket ticket);
/* FL_E_STALLED: no copy was completed for the limit's time; what is queued stays queued. */
FL_CHECKED fl_status fl_device_wait(fl_device *dev, fl_ticket ticket, fl_err *err);
/* 0, as after open: waits never end that way. */
void fl_device_set_limit(fl_device *dev, uint64_t ns);
/* Copies that are queued, the one that moves among them. */
uint64_t fl_device_copies_queued(const fl_device *dev);
/* Bytes copied to the device so far, and the time that the copy engine was busy with them. */
uint64_t fl_device_bytes_copied(const fl_device *dev);
uint64_t fl_device_copy_ns(const fl_device *dev);

/* Pins page-aligned host memory, so that the device's copies from it need no copy in between: in
 * chunks of FL_PIN_CHUNK, up to the first that the machine refuses. Returns the bytes from `base`
 * that are pinned; copies from the rest work as well. The host device only counts them. Each is
 * unpinned, with what pin returned, before the memory goes and the device is closed (assert). */
#define FL_PIN_CHUNK (UINT64_C(256) << 20)
FL_CHECKED uint64_t fl_device_pin(fl_device *dev, void *base, uint64_t bytes);
void fl_device_unpin(fl_device *dev, void *base, uint64_t pinned);

#endif
