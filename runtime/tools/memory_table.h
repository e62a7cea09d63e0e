#ifndef FL_TOOLS_MEMORY_TABLE_H
#define FL_TOOLS_MEMORY_TABLE_H

#include <stdio.h>

#include "runtime/base/json.h"
#include "runtime/model/engine.h"

/* Memory of a loaded engine, as planned and as it is. */
typedef struct fl_memory_line {
    uint64_t planned, used; /* bytes */
} fl_memory_line;

typedef struct fl_memory_use {
    fl_memory_line device, host; /* host: staging buffers and the host tier */
    fl_memory_line process; /* planned: host, checkpoints in use and, on the host device, device
                               memory; used: what the process has in main memory */
} fl_memory_use;

/* checkpoint_bytes: of those in use. */
fl_memory_use fl_memory_measure(const fl_engine *e, uint64_t checkpoint_bytes);
/* {"device": {"planned", "used"}, "host": {...}, "process": {...}}, bytes. */
fl_json *fl_memory_json(const fl_memory_use *m);
/* "memory   planned   in use   unaccounted" and a line each, in MiB. */
void fl_memory_print(FILE *f, const fl_memory_use *m);

#endif
