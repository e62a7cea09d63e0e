#include "runtime/tools/slices.h"

enum { SLICE_VALUES = 1 << 20, SMALL_RUN = 64 << 10, SMALL_TENSOR = 4 << 20 };

/* Many small runs out of one small tensor: it is read whole instead. */
static bool read_whole(const fl_conv_tensor *t)
{
    if (t->map != FL_CONV_HEADS || t->one->bytes > SMALL_TENSOR) return false;
    return (uint64_t)t->unit * fl_type_row_bytes(t->one->type, (uint64_t)t->cols) < SMALL_RUN;
}

static int64_t expert_rows(const fl_conv_tensor *t) { return t->n_dims == 3 ? t->ne[1] : t->rows; }

static int64_t slice_rows(const fl_conv_tensor *t)
{
    const int64_t n = SLICE_VALUES / t->cols;
    return read_whole(t) ? t->rows : n < 1 ? 1 : n;
}

bool fl_slice_next(const fl_conv *c, fl_slice *s)
{
    int64_t row = s->row0 + s->rows;
    if (s->end) {
        s->tensor++;
        row = 0;
    }
    if (s->tensor >= c->n) return false;
    const fl_conv_tensor *t = &c->tensor[s->tensor];
    const int64_t each = expert_rows(t), in = row % each, left = each - in;
    s->expert = (int)(row / each);
    s->row0 = row;
    s->rows = left < slice_rows(t) ? left : slice_rows(t);
    s->first = in == 0;
    s->last = s->rows == left;
    s->end = row + s->rows == t->rows;
    return true;
}

int fl_slice_parts(const fl_conv *c, const fl_slice *s, fl_slice_part *part, int room)
{
    const fl_conv_tensor *t = &c->tensor[s->tensor];
    if (read_whole(t)) {
        if (room > 0) part[0] = (fl_slice_part){t->one, 0, t->one->bytes, NULL};
        return 1;
    }
    int n = 0;
    fl_slice_part last = {0};
    for (int64_t r = s->row0; r < s->row0 + s->rows;) {
        const fl_conv_run run = fl_conv_run_at(t, r, s->row0 + s->rows - r);
        const uint64_t skip = (uint64_t)run.from * run.row_bytes;
        const uint64_t bytes = (uint64_t)run.rows * run.row_bytes;
        r += run.rows;
        if (n > 0 && run.src == last.src && skip == last.skip + last.bytes) {
            last.bytes += bytes;
        } else {
            last = (fl_slice_part){run.src, skip, bytes, NULL};
            n++;
        }
        if (n <= room) part[n - 1] = last;
    }
    return n;
}
