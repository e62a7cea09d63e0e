#ifndef FL_MODEL_UPLOAD_H
#define FL_MODEL_UPLOAD_H

#include "offload/io.h"
#include "runtime/device/device.h"

/* File extents and host bytes into device memory at load, through a few staging buffers: reads
 * run ahead while earlier pieces are copied. Owner: the loading thread. */
typedef struct fl_upload fl_upload;

/* `io` has nothing in flight and stays unused by others until close. `moved` is called with the
 * bytes of each piece that has arrived. */
FL_CHECKED fl_status fl_upload_open(fl_upload **out, fl_device *dev, fl_io *io,
                                    void (*moved)(void *arg, uint64_t bytes), void *arg,
                                    fl_err *err);
/* Copies an extent to dst (device memory). Returns when all of it is there. */
FL_CHECKED fl_status fl_upload_extent(fl_upload *u, const fl_extent *x, void *dst, fl_err *err);
/* Copies n host bytes to dst. */
FL_CHECKED fl_status fl_upload_bytes(fl_upload *u, const void *src, uint64_t n, void *dst,
                                     fl_err *err);
void fl_upload_close(fl_upload **u);

#endif
