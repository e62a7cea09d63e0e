#include "runtime/model/tokenizer.h"

fl_status fl_tokenizer_open(fl_tokenizer **out, const fl_source *src, fl_err *err)
{
    const char *json = fl_source_tokenizer_path(src);
    *out = NULL;
    if (fl_source_gguf(src))
        return fl_tokenizer_from_gguf(out, fl_source_gguf(src), fl_source_paths(src)[0], err);
    if (json) return fl_tokenizer_from_json(out, json, err);
    return FL_FAIL(err, FL_E_FORMAT, 0, "%s: there is no tokenizer.json beside the weights",
                   fl_source_paths(src)[0]);
}
