#include "tests/support/tmp.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(int ok, const char *what)
{
    if (ok) return;
    perror(what);
    exit(3);
}

char *fl_tmp_make(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    need(asprintf(&path, "%s/fl_test_XXXXXX", base ? base : "/tmp") > 0, "asprintf");
    need(mkdtemp(path) != NULL, path);
    return path;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st;
    (void)kind;
    (void)f;
    return remove(path);
}

void fl_tmp_remove(char *dir)
{
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

char *fl_tmp_path(const char *dir, const char *name)
{
    char *path = NULL;
    need(asprintf(&path, "%s/%s", dir, name) > 0, "asprintf");
    return path;
}

int fl_tmp_begin(char **dir, char **path, const char *name)
{
    *dir = fl_tmp_make();
    *path = fl_tmp_path(*dir, name);
    return 0;
}

int fl_tmp_end(char *dir, char *path)
{
    free(path);
    fl_tmp_remove(dir);
    return 0;
}

void fl_tmp_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    need(f != NULL, path);
    need(fwrite(data, 1, n, f) == n, path);
    need(fclose(f) == 0, path);
}

int fl_tmp_count(const char *dir)
{
    DIR *d = opendir(dir);
    need(d != NULL, dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
