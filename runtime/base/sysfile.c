#include "runtime/base/sysfile.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool fl_sys_path(char out[FL_SYS_PATH], const char *root, const char *path)
{
    return snprintf(out, FL_SYS_PATH, "%s%s", root ? root : "", path) < FL_SYS_PATH;
}

static FILE *open_file(const char *root, const char *path)
{
    char full[FL_SYS_PATH];
    return fl_sys_path(full, root, path) ? fopen(full, "re") : NULL;
}

bool fl_sys_line(const char *root, const char *path, char *line, size_t size)
{
    FILE *f = open_file(root, path);
    if (!f) return false;
    const bool got = fgets(line, (int)size, f) != NULL;
    fclose(f);
    if (got) line[strcspn(line, "\n")] = '\0';
    return got;
}

static void copy_trimmed(char *to, size_t size, const char *from)
{
    while (isspace((unsigned char)*from)) from++;
    size_t n = strlen(from);
    while (n > 0 && isspace((unsigned char)from[n - 1])) n--;
    if (n >= size) n = size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

bool fl_sys_text(const char *root, const char *path, const char *key, char *text, size_t size)
{
    char line[512];
    bool found = false;
    FILE *f = open_file(root, path);
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        found = strncmp(line, key, strlen(key)) == 0;
        if (found) copy_trimmed(text, size, line + strlen(key));
    }
    fclose(f);
    return found;
}

bool fl_sys_number(const char *root, const char *path, const char *key, uint64_t *v)
{
    char line[256];
    bool found = false;
    const size_t k = strlen(key);
    FILE *f = open_file(root, path);
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        long long x;
        if (strncmp(line, key, k) != 0 || sscanf(line + k, "%lld", &x) != 1 || x < 0) continue;
        *v = (uint64_t)x;
        found = true;
    }
    fclose(f);
    return found;
}
