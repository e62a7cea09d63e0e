#ifndef FL_BASE_LOCK_H
#define FL_BASE_LOCK_H

#include "runtime/base/status.h"

/* One process at a time for a file that is read, then replaced under its name (fl_outfile): a lock
 * on PATH.lock, which lies beside the file that PATH leads to and is there only while the lock is
 * held. A process that ends holds it no longer, however it ends; a PATH.lock that SIGKILL leaves is
 * in nobody's way. Where the file system has no locks, it is as if nobody else held one. */
typedef struct fl_lock fl_lock;

/* Does not wait. FL_E_BUSY: another process (or this one) holds it; FL_E_IO: PATH.lock cannot be
 * made, or PATH is a symbolic link that leads to no file. */
FL_CHECKED fl_status fl_lock_take(fl_lock **out, const char *path, fl_err *err);
/* NULL in *lock: nothing to do. */
void fl_lock_release(fl_lock **lock);

#endif
