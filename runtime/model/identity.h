#ifndef FL_MODEL_IDENTITY_H
#define FL_MODEL_IDENTITY_H

#include "runtime/model/source.h"

/* Which model this is, whatever its file is called: XXH3 (64 bits) over every file's bytes before
 * its first tensor (metadata and tensor table), the first 4 KiB of each tensor, and beside
 * safetensors config.json, generation_config.json and tokenizer.json. The same content elsewhere
 * has the same identity; a split or converted copy has another one. Reads a few MiB of a 20 GB
 * file. FL_E_IO, FL_E_FORMAT: a file that no longer is what was opened; FL_E_NOMEM. */
FL_CHECKED fl_status fl_model_identity(const fl_source *src, uint64_t *out, fl_err *err);

#endif
