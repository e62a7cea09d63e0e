#ifndef FL_OFFLOAD_MEASURE_LINK_H
#define FL_OFFLOAD_MEASURE_LINK_H

#include "runtime/device/device.h"

/* How fast a device's copy stream takes bytes from host memory, by the size of a copy, each waited
 * for. A fraction of a second. Held by tests/offload/test_measure.c. */

enum { FL_LINK_SIZES = 5 };

typedef struct fl_link_sample {
    uint64_t bytes; /* of one copy: 64 KiB, 256 KiB, ... 16 MiB */
    uint64_t pinned_bytes_s, pageable_bytes_s;
} fl_link_sample;

typedef struct fl_link_rates {
    int n; /* sizes that the device has room for; 0: none, and nothing was measured */
    fl_link_sample sample[FL_LINK_SIZES];
    /* Between the largest sizes, so without the fixed cost of a copy. From memory that could not
     * be pinned (`pinned` false) `bytes_s` is what pageable memory gives. */
    uint64_t bytes_s, pageable_bytes_s;
    uint64_t start_ns; /* that fixed cost */
    bool pinned;
} fl_link_rates;

/* Takes at most half of the device memory that is free, and gives it back. FL_E_NOMEM, FL_E_DEVICE.
 */
FL_CHECKED fl_status fl_link_measure(fl_device *dev, fl_link_rates *out, fl_err *err);

#endif
