#include "tests/support/poison.h"

#include "runtime/model/source.h"
#include "tests/support/test.h"

void fl_poison(const char *path, const char *tensor, uint64_t skip, int n, uint64_t stride,
               float value)
{
    fl_err err = {0};
    fl_source *src = NULL;
    ASSERT_OK(fl_source_open(&src, path, &err));
    const fl_tensor *t = fl_source_find(src, tensor);
    if (!t) fail_msg("%s: no tensor %s", path, tensor);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        assert_int_equal(fseek(f, (long)(t->offset + skip + (uint64_t)i * stride), SEEK_SET), 0);
        assert_int_equal(fwrite(&value, sizeof(value), 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
    fl_source_close(&src);
}
