/* A file of logits (eval --against). Byte 0 says what is put right, so that damage behind a
 * checksum is reached as well: 1 the number of rows, as the length gives it, 2 both checksums. The
 * rest is the file from its 9th byte on. Each row that is taken is compared with another. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/tools/logit_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { HEAD = 192, VOCAB_AT = 40, ROWS_AT = 168, MOST = 1 << 20 };

static void need(bool ok)
{
    if (!ok) abort();
}

static void mend(uint8_t *file, size_t n, uint8_t what)
{
    uint32_t vocab;
    uint64_t rows, hash = 0;
    memcpy(&vocab, file + VOCAB_AT, sizeof(vocab));
    if ((what & 1) && vocab > 0 && vocab < 1 << 16) {
        rows = (n - HEAD) / fl_logit_row_bytes(vocab);
        memcpy(file + ROWS_AT, &rows, sizeof(rows));
    }
    if (!(what & 2)) return;
    hash = XXH3_64bits(file + HEAD, n - HEAD);
    memcpy(file + ROWS_AT + 8, &hash, sizeof(hash));
    memset(file + ROWS_AT + 16, 0, sizeof(hash));
    hash = XXH3_64bits(file, HEAD);
    memcpy(file + ROWS_AT + 16, &hash, sizeof(hash));
}

static void use(fl_logit_reader *r)
{
    const int64_t vocab = fl_logit_reader_setup(r)->vocab;
    if (vocab > 4096) return;
    float *logits = malloc((size_t)vocab * sizeof(*logits));
    void *row = malloc(fl_logit_row_bytes(vocab));
    need(logits && row);
    for (int64_t i = 0; i < vocab; i++) logits[i] = (float)(i % 17) - 8;
    const uint64_t n = fl_logit_reader_rows(r);
    need(fl_logit_reader_get(r, n, 1, row, NULL) == FL_E_FORMAT);
    for (uint64_t i = 0; i < n && i < 8; i++) {
        if (fl_logit_reader_get(r, i, 1, row, NULL) != FL_OK) continue;
        const int32_t best = fl_logit_row_best(row);
        const fl_divergence d = fl_logit_row_compare(row, logits, vocab);
        need(best >= 0 && best < vocab && isfinite(fl_logit_row_nll(row)));
        need(d.kl >= 0 && isfinite(d.kl) && d.error >= 0 && isfinite(d.error));
    }
    free(logits);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static uint8_t file[MOST];
    fl_logit_reader *r = NULL;
    if (n < 1 || n - 1 > sizeof(file) - 8) return 0;
    const size_t bytes = n - 1 + 8;
    memcpy(file, "FLLOGITS", 8);
    memcpy(file + 8, p + 1, n - 1);
    if (bytes >= HEAD) mend(file, bytes, p[0]);
    const int fd = memfd_create("logits", 0);
    need(fd >= 0 && write(fd, file, bytes) == (ssize_t)bytes);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    need(fl_logit_file_is(path) == true);
    if (fl_logit_reader_open(&r, path, NULL) == FL_OK) use(r);
    fl_logit_reader_close(&r);
    close(fd);
    return 0;
}
