#include "runtime/model/upload.h"

#include <stdlib.h>

enum { N_STAGES = 4 };
static const uint64_t PIECE = 2u << 20;

struct fl_upload {
    fl_device *dev;
    fl_io *io;
    uint8_t *memory;
    uint64_t stage_bytes;
    void (*moved)(void *arg, uint64_t bytes);
    void *arg;
};

fl_status fl_upload_open(fl_upload **out, fl_device *dev, fl_io *io,
                         void (*moved)(void *arg, uint64_t bytes), void *arg, fl_err *err)
{
    const uint64_t align = fl_io_align(io);
    fl_upload *u = calloc(1, sizeof(*u));
    if (!u) return FL_FAIL(err, FL_E_NOMEM, 0, "loading: out of memory");
    u->dev = dev;
    u->io = io;
    u->moved = moved;
    u->arg = arg;
    /* A cover is at most one alignment unit longer at each end. */
    u->stage_bytes = PIECE + 2 * align;
    u->memory = aligned_alloc(align, N_STAGES * u->stage_bytes);
    if (!u->memory) {
        free(u);
        return FL_FAIL(err, FL_E_NOMEM, 0, "loading: out of memory for staging buffers");
    }
    *out = u;
    return FL_OK;
}

void fl_upload_close(fl_upload **u)
{
    if (!*u) return;
    /* A drive that hangs may still write. */
    if (!fl_io_in_flight((*u)->io)) free((*u)->memory);
    free(*u);
    *u = NULL;
}

fl_status fl_upload_bytes(fl_upload *u, const void *src, uint64_t n, void *dst, fl_err *err)
{
    fl_ticket t;
    FL_TRY(fl_device_copy_async(u->dev, dst, src, n, &t, err));
    FL_TRY(fl_device_wait(u->dev, t, err));
    u->moved(u->arg, n);
    return FL_OK;
}

/* A finished piece goes to its place. The tag says which piece and which stage. */
static fl_status store_piece(fl_upload *u, const fl_extent *x, const fl_io_done *d, void *dst,
                             fl_err *err)
{
    const uint64_t at = d->tag / N_STAGES * PIECE;
    const uint64_t n = x->bytes - at < PIECE ? x->bytes - at : PIECE;
    return fl_upload_bytes(u, d->data, n, (uint8_t *)dst + at, err);
}

fl_status fl_upload_extent(fl_upload *u, const fl_extent *x, void *dst, fl_err *err)
{
    const uint64_t n_pieces = (x->bytes + PIECE - 1) / PIECE;
    int free_stage[N_STAGES], n_free = N_STAGES;
    uint64_t next = 0;
    fl_status st = FL_OK;
    for (int i = 0; i < N_STAGES; i++) free_stage[i] = i;

    while (next < n_pieces || fl_io_in_flight(u->io) > 0) {
        while (st == FL_OK && next < n_pieces && n_free > 0) {
            const int s = free_stage[n_free - 1];
            const uint64_t at = next * PIECE;
            const fl_extent piece = {x->file, x->offset + at,
                                     x->bytes - at < PIECE ? x->bytes - at : PIECE};
            const fl_status q = fl_io_submit(u->io, &piece, u->memory + s * u->stage_bytes,
                                             next * N_STAGES + (uint64_t)s, err);
            if (q == FL_E_BUSY) break;
            if (q != FL_OK) {
                st = q;
                break;
            }
            n_free--;
            next++;
        }
        if (fl_io_in_flight(u->io) == 0) break;
        fl_io_done done[N_STAGES];
        int n_done = 0;
        const fl_status w = fl_io_wait(u->io, done, 1, N_STAGES, &n_done, err);
        if (st == FL_OK) st = w;
        if (w == FL_E_STALLED) break;
        for (int i = 0; i < n_done; i++) {
            if (st == FL_OK) st = store_piece(u, x, &done[i], dst, err);
            free_stage[n_free++] = (int)(done[i].tag % N_STAGES);
        }
    }
    return st;
}
