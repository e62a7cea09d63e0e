#ifndef FL_BASE_SYSFILE_H
#define FL_BASE_SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The small files in which the kernel describes a machine, /proc and /sys. `root` stands in front
 * of every path: NULL for this machine; tests give the folder of another one. What cannot be read
 * is unknown, never a failure. */

enum { FL_SYS_PATH = 1024 };
/* root and path put together; false when that is too long. */
bool fl_sys_path(char out[FL_SYS_PATH], const char *root, const char *path);
/* The first line, without its end. */
bool fl_sys_line(const char *root, const char *path, char *line, size_t size);
/* What stands behind `key` at the start of a line, without blanks around it. */
bool fl_sys_text(const char *root, const char *path, const char *key, char *text, size_t size);
/* The number behind `key` at the start of a line; with "" that at the start of the first line that
 * has one. */
bool fl_sys_number(const char *root, const char *path, const char *key, uint64_t *v);

#endif
