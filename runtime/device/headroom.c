#include "runtime/device/headroom.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

uint64_t fl_memory_to_take(uint64_t free, fl_memory_kind kind, bool wsl)
{
    const uint64_t MiB = 1 << 20;
    uint64_t headroom = free / 8;
    if (kind == FL_MEMORY_CARD) headroom = larger(256 * MiB, free / 32);
    if (kind == FL_MEMORY_CARD_SCREEN) headroom = larger(512 * MiB, free / 16);
    if (kind != FL_MEMORY_MAIN && wsl) headroom = larger(headroom, free / 10);
    return free > headroom ? free - headroom : 0;
}
