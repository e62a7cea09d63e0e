#include "tests/support/fake_root.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* root/path with the folders above it; malloc'ed. */
static char *place(const char *root, const char *path)
{
    assert_true(path[0] == '/');
    char *full = fl_tmp_path(root, path + 1);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    return full;
}

void fl_fake_put(const char *root, const char *path, const char *text)
{
    char *full = place(root, path);
    fl_tmp_write(full, text, strlen(text));
    free(full);
}

void fl_fake_link(const char *root, const char *path, const char *target)
{
    char *full = place(root, path);
    char *to = target[0] == '/' ? place(root, target) : strdup(target);
    unlink(full);
    assert_int_equal(symlink(to, full), 0);
    free(to);
    free(full);
}
