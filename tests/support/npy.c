#include "tests/support/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    abort();
}

fl_npy fl_npy_load(const char *path)
{
    fl_npy a = {0};
    uint8_t head[10];
    char text[512];
    FILE *f = fopen(path, "rb");
    if (!f) fail(path, "cannot be opened");
    if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY\x01", 7) != 0)
        fail(path, "is no npy 1.0");
    const size_t n = (size_t)head[8] | (size_t)head[9] << 8;
    if (n >= sizeof(text) || fread(text, 1, n, f) != n) fail(path, "header cut short");
    text[n] = 0;

    const char *shape = strstr(text, "'shape': (");
    const int ints = strstr(text, "'<i4'") != NULL;
    if (!shape || strstr(text, "True") || (!ints && !strstr(text, "'<f4'")))
        fail(path, "unexpected header");
    long long x = 0, y = 0;
    if (sscanf(shape + 10, "%lld, %lld", &x, &y) == 2)
        a.rows = x, a.cols = y;
    else
        a.rows = 1, a.cols = x;

    const size_t count = (size_t)(a.rows * a.cols);
    void *data = malloc(count * 4 + 1);
    if (!data || fread(data, 4, count, f) != count) fail(path, "data cut short");
    fclose(f);
    if (ints)
        a.i = data;
    else
        a.f = data;
    return a;
}

void fl_npy_free(fl_npy *a)
{
    free(a->f);
    free(a->i);
    *a = (fl_npy){0};
}
