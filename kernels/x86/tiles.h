#ifndef FL_KERNELS_X86_TILES_H
#define FL_KERNELS_X86_TILES_H

/* The tile instructions of AMX as law_amx.h uses them; tests/support/tiles.h has the same in C.
 * Tiles are named by literal numbers. gcc 12 does not know that a load reads memory: without the
 * barrier it may drop the stores before. Nor that the shape is longer than 8 bytes: it is constant.
 */
#if defined(__AMX_INT8__) || defined(__AMXINT8__)

#include <immintrin.h>

#define FL_TILES
#define fl_tile_config(c) _tile_loadconfig(c)
#define fl_tile_release() _tile_release()
#define fl_tile_zero(t) _tile_zero(t)
#define fl_tile_load(t, p, stride)         \
    do {                                   \
        __asm__ volatile("" ::: "memory"); \
        _tile_loadd(t, p, stride);         \
    } while (0)
#define fl_tile_store(t, p, stride) _tile_stored(t, p, stride)
/* t += the products of signed bytes of a and b. */
#define fl_tile_dot(t, a, b) _tile_dpbssd(t, a, b)

#endif
#endif
