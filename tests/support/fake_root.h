#ifndef FL_TESTS_SUPPORT_FAKE_ROOT_H
#define FL_TESTS_SUPPORT_FAKE_ROOT_H

/* Another machine's /proc and /sys, written below a folder. Paths begin with '/'; folders on the
 * way are made. */

void fl_fake_put(const char *root, const char *path, const char *text);
/* A symbolic link; a target that begins with '/' is meant below root, as on the machine itself. */
void fl_fake_link(const char *root, const char *path, const char *target);

#endif
