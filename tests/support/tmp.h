#ifndef FL_TESTS_SUPPORT_TMP_H
#define FL_TESTS_SUPPORT_TMP_H

#include <stddef.h>

/* A fresh folder under $TMPDIR or /tmp, removed with all it holds by fl_tmp_remove. Returns a
 * malloc'ed path; a failure ends the test program. */
char *fl_tmp_make(void);
void fl_tmp_remove(char *dir);
/* dir/name, malloc'ed. */
char *fl_tmp_path(const char *dir, const char *name);
/* What a test's setup and teardown do when it has one such folder and one name in it. Return 0. */
int fl_tmp_begin(char **dir, char **path, const char *name);
int fl_tmp_end(char *dir, char *path);
/* Writes a file. */
void fl_tmp_write(const char *path, const void *data, size_t n);
/* Number of entries in a folder, without . and .. */
int fl_tmp_count(const char *dir);

#endif
