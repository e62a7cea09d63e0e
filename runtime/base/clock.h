#ifndef FL_BASE_CLOCK_H
#define FL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock that never goes back, from an arbitrary start; only differences mean
 * something. */
static inline uint64_t fl_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* That time, or the latest that the system's calls take. */
static inline struct timespec fl_clock_time(uint64_t ns)
{
    if (ns > INT64_MAX) ns = INT64_MAX;
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

#endif
