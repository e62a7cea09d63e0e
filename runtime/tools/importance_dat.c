#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/tools/importance_parts.h"

/* llama.cpp's imatrix before it was GGUF, little endian: i32 number of entries; each entry i32
 * length and bytes of its name, i32 calls, i32 number of values, these as floats. What follows
 * (chunks, name of the text) is not needed. */

enum { MOST_ENTRIES = 1 << 20, MOST_NAME = 256 };
static const uint64_t most_bytes = 4ull << 30;

static int32_t i32_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static bool is_name(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] <= ' ' || p[i] > '~') return false;
    return n > 0;
}

bool fl_importance_is_dat(const char *path)
{
    uint8_t head[12];
    int fd;
    uint64_t size = 0;
    if (fl_file_open(path, &fd, &size, NULL) != FL_OK) return false;
    const bool read =
        size >= sizeof head && fl_file_read_at(fd, head, sizeof head, 0, path, NULL) == FL_OK;
    close(fd);
    if (!read) return false;
    const int32_t n = i32_at(head), name = i32_at(head + 4);
    return n > 0 && n <= MOST_ENTRIES && name > 4 && name <= MOST_NAME && is_name(head + 8, 4);
}

static fl_status damaged(const fl_importance *im, int entry, fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: an imatrix of llama.cpp that is damaged or cut off at entry %d of %d; get "
                   "it again",
                   im->path, entry + 1, im->n_entries);
}

static fl_status read_table(fl_importance *im, uint64_t size, fl_err *err)
{
    const uint8_t *p = (const uint8_t *)im->file, *end = p + size;
    im->n_entries = i32_at(p);
    if ((uint64_t)im->n_entries > size / 12) return damaged(im, 0, err);
    im->entry = calloc((size_t)im->n_entries, sizeof *im->entry);
    if (!im->entry) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", im->path);
    p += 4;
    for (int i = 0; i < im->n_entries; i++) {
        fl_dat_entry *e = &im->entry[i];
        if (end - p < 4) return damaged(im, i, err);
        const int32_t length = i32_at(p);
        p += 4;
        if (length < 1 || length > MOST_NAME || end - p < (ptrdiff_t)length + 8 ||
            !is_name(p, (size_t)length))
            return damaged(im, i, err);
        e->name = (fl_str){(const char *)p, (size_t)length};
        p += length;
        e->calls = (double)i32_at(p);
        e->n = i32_at(p + 4);
        p += 8;
        if (e->n < 1 || (end - p) / 4 < e->n) return damaged(im, i, err);
        e->data = p;
        p += 4 * e->n;
    }
    return FL_OK;
}

fl_status fl_importance_open_dat(fl_importance *im, fl_err *err)
{
    uint64_t size = 0;
    FL_TRY(fl_file_load(im->path, most_bytes, &im->file, &size, err));
    im->info = (fl_importance_info){.kind = "imatrix", .model = "", .identity = ""};
    return read_table(im, size, err);
}
