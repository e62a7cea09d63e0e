#ifndef FL_DEVICE_H
#define FL_DEVICE_H

#include "runtime/base/arena.h"

/* A device: memory with a hard cap, and copy streams. The host device is a full citizen: its own
 * capped memory, a copy engine thread with an optional rate limit standing for a PCIe link; the
 * CPU kernels compute on it. One thread owns a device (the inference thread). */
typedef struct fl_device fl_device;

typedef struct fl_device_config {
    const char *kind;      /* "host" */
    uint64_t memory_cap;   /* bytes; 0 = what the device has */
    uint64_t link_bytes_s; /* copy engine's rate limit, bytes per second; 0 = none */
} fl_device_config;

FL_CHECKED fl_status fl_device_open(fl_device **out, const fl_device_config *cfg, fl_err *err);
/* All memory must have been freed (assert). Waits for copies. */
void fl_device_close(fl_device **dev);
const char *fl_device_kind(const fl_device *dev);
/* cap, used, peak of the device's memory. */
const fl_budget *fl_device_budget(const fl_device *dev);

/* Device memory, 4,096-aligned, zeroed; counted against the cap. `what` names it in errors. */
FL_CHECKED fl_status fl_device_alloc(fl_device *dev, uint64_t bytes, const char *what, void **ptr,
                                     fl_err *err);
void fl_device_free(fl_device *dev, void **ptr);

/* Copies run in order on the device's copy stream. A ticket is a point on that stream. `src` and
 * `dst` must stay untouched until the ticket is reached. */
typedef uint64_t fl_ticket;
FL_CHECKED fl_status fl_device_copy_async(fl_device *dev, void *dst, const void *src,
                                          uint64_t bytes, fl_ticket *ticket, fl_err *err);
/* True when the copy behind the ticket (and all before it) is done. */
bool fl_device_done(fl_device *dev, fl_ticket ticket);
FL_CHECKED fl_status fl_device_wait(fl_device *dev, fl_ticket ticket, fl_err *err);
/* Bytes copied to the device so far. */
uint64_t fl_device_bytes_copied(const fl_device *dev);

#endif
