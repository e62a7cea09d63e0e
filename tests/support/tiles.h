#ifndef FL_TESTS_SUPPORT_TILES_H
#define FL_TESTS_SUPPORT_TILES_H

#include <stdbool.h>
#include <stdint.h>

/* The tile instructions of AMX in C, as the manual describes them, for CPUs without them: the
 * state is the thread's own, and what an instruction would refuse (a tile outside of the
 * configured shape, shapes that do not fit together) ends the program. The same names as in
 * kernels/x86/tiles.h, so that law_amx.h can be compiled against them. */
#define FL_TILES

void fl_tile_config(const void *shape); /* 64 bytes */
void fl_tile_release(void);
void fl_tile_zero(int t);
void fl_tile_load(int t, const void *p, int64_t stride);
void fl_tile_store(int t, void *p, int64_t stride);
/* t += the products of signed bytes: t[m][n] += sum over k of a[m][k] b[k / 4][4 n + k % 4]. */
void fl_tile_dot(int t, int a, int b);

/* True when this thread has no tile configuration. */
bool fl_tiles_released(void);
/* Instructions executed by this process so far. */
long fl_tiles_executed(void);

/* From now on a tile instruction that the CPU refuses is carried out by the functions above: code
 * compiled for AMX runs. */
void fl_tiles_trap(void);

/* kernels/x86/law_amx.h compiled with these functions and AVX2: mul_law for any number of rows. */
struct fl_mat;
struct fl_act;
void fl_emulated_mul_tiles(const struct fl_mat *w, int64_t n0, int64_t n1, const struct fl_act *x,
                           int n_rows, float *y, int64_t ldy);

#endif
