#ifndef FL_OFFLOAD_RATES_H
#define FL_OFFLOAD_RATES_H

#include "runtime/base/json.h"

/* How fast this machine moves and computes what a model needs, as `fourleaf calibrate` measured it.
 * Speeds in bytes per second (powers of 1000), times in nanoseconds. 0: not measured. Held by
 * tests/offload/test_rates.c. */

enum { FL_RATES_MAX_ROWS = 8 };

typedef struct fl_rates {
    uint64_t link_bytes_s;          /* host to device, from pinned memory, large pieces */
    uint64_t link_pageable_bytes_s; /* the same from memory that is not pinned */
    uint64_t link_start_ns;         /* fixed cost of one copy */
    uint64_t device_bytes_s;        /* device memory, read by products */
    uint64_t file_bytes_s;          /* expert extents of the real file, O_DIRECT, best depth */
    uint64_t host_bytes_s;          /* host memory, read by all threads of the pool */
    int n_rows;                     /* entries in use below, at most FL_RATES_MAX_ROWS */
    int rows[FL_RATES_MAX_ROWS];    /* activation rows, ascending from 1: 1, 2, 4, ... 64, 512 */
    uint64_t cpu_expert_ns[FL_RATES_MAX_ROWS]; /* one expert of the model on the whole pool */
    uint64_t dense_pass_ns[FL_RATES_MAX_ROWS]; /* a whole pass without the routed experts */
} fl_rates;

/* An object with the names above as keys; "rows", "cpu_expert_ns" and "dense_pass_ns" are arrays of
 * one length. The caller owns it. NULL: out of memory. */
fl_json *fl_rates_to_json(const fl_rates *r);

/* The other way round; `what` names the source in a message. An absent key is not measured. A key
 * that is none of the above, a value that is no whole number from 0 on, arrays of different lengths
 * or too long, rows that do not ascend from at least 1: FL_E_FORMAT, and *out is all zero. */
FL_CHECKED fl_status fl_rates_from_json(fl_rates *out, const fl_json *j, const char *what,
                                        fl_err *err);

#endif
