#ifndef FL_MODEL_SHARDS_H
#define FL_MODEL_SHARDS_H

#include <stdbool.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* Which files make up a model: names of shards, weight maps, folders. */

/* A file name of the form PREFIX-00002-of-00005EXT. */
typedef struct fl_shard_name {
    size_t prefix; /* length of PREFIX, folder included */
    int no, of;    /* 2 and 5 */
} fl_shard_name;
bool fl_shard_name_parse(const char *path, const char *ext, fl_shard_name *out);

/* One line of a weight map: which file holds a tensor. */
typedef struct fl_shard_entry {
    fl_str tensor, file;
} fl_shard_entry;

/* Folder and files of a safetensors model. */
typedef struct fl_shards {
    char *dir;   /* without a slash at its end */
    char **path; /* [n], malloc'ed, in the order of the shards */
    int n;
    fl_shard_entry *map; /* [n_map]: model.safetensors.index.json, or NULL */
    size_t n_map;
    char *text; /* what the entries point into */
} fl_shards;

/* `path` is a folder or one .safetensors file. A folder without a model, a missing or renamed
 * shard, a damaged index give one line. */
FL_CHECKED fl_status fl_shards_find(fl_shards *out, const char *path, bool is_folder, fl_err *err);
void fl_shards_fini(fl_shards *s);

/* dir/name, malloc'ed. */
FL_CHECKED fl_status fl_path_join(char **out, const char *dir, const char *name, fl_err *err);
bool fl_path_exists(const char *path);

#endif
