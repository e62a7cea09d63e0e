#ifndef FL_BASE_PAGES_H
#define FL_BASE_PAGES_H

#include <stdint.h>

/* Anonymous memory from the kernel, zeroed, in large pages where it has them: from a multiple of
 * 2 MiB. Weights that are read once per pass are then looked up every 2 MiB instead of every 4 KiB,
 * and a direct read names few pieces to the drive: at 590 KB a read, half the processor time and up
 * to twice the bytes per second (bench/io). `bytes` > 0; NULL with errno on failure. */
void *fl_pages_take(uint64_t bytes);
void fl_pages_give(void *p, uint64_t bytes);

#endif
