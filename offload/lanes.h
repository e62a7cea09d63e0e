#ifndef FL_OFFLOAD_LANES_H
#define FL_OFFLOAD_LANES_H

#include <stdbool.h>
#include <stdint.h>

/* Where an expert of the host tier is computed that is not in device memory: on the CPU, straight
 * from host memory, or on the device, behind a copy over the link. Pure functions on measured
 * rates, which are corrected with each measurement. The result of an expert is the same on both.
 * Held by tests/offload/test_lanes.c. */
typedef enum fl_lane { FL_ON_CPU, FL_ON_DEVICE } fl_lane;
typedef enum fl_lane_choice { FL_LANES_AUTO, FL_LANES_CPU, FL_LANES_DEVICE } fl_lane_choice;

enum { FL_LANES_RETRY = 256 };

typedef struct fl_lanes {
    fl_lane_choice choice;
    bool one_pool;         /* the CPU computes the device's experts too (host device): a copy only
                              delays, so FL_LANES_AUTO copies nothing */
    uint64_t cpu_work_s;   /* work per second (fl_lane_work); 0 = not measured */
    uint64_t link_bytes_s; /* 0 = not measured */
    int idle[2];           /* splits in a row that gave the lane nothing */
} fl_lanes;

typedef struct fl_lane_item {
    int32_t rows;
    uint64_t bytes;
    fl_lane lane; /* out */
} fl_lane_item;

/* What an expert costs the CPU, in bytes read for one row: rows beyond the first read the weights
 * from the cache and cost an eighth each. The rate takes in what is wrong with this. */
uint64_t fl_lane_work(uint64_t bytes, int32_t rows);

/* Gives each item its lane so that both are done as early as can be: the device takes those with
 * many rows, the CPU those with few, and each further item goes where it is done first. `queued`:
 * bytes that the link has to carry before. A lane that is not measured yet, or got nothing
 * FL_LANES_RETRY times in a row, is given one item. order: scratch, [n]. */
void fl_lanes_split(fl_lanes *l, fl_lane_item *item, int n, uint64_t queued, int32_t *order);

/* True when no item ever goes to the device. */
static inline bool fl_lanes_cpu_only(const fl_lanes *l)
{
    return l->choice == FL_LANES_CPU || (l->choice == FL_LANES_AUTO && l->one_pool);
}

/* Measurements: an eighth of the difference is taken over. ns 0 is ignored. */
void fl_lanes_saw_cpu(fl_lanes *l, uint64_t work, uint64_t ns);
void fl_lanes_saw_link(fl_lanes *l, uint64_t bytes, uint64_t ns);

#endif
