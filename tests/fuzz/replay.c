/* Links with a fuzz target to replay its committed corpus as a plain test (no libFuzzer): prints
 * one TAP line per file of tests/fuzz/corpus/NAME, NAME from the program's own name replay_NAME. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static int replay(const char *dir, const char *name, int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) {
        printf("not ok %d - %s cannot be opened\n", number, path);
        return 1;
    }
    uint8_t *buf = malloc(1 << 22);
    const size_t n = fread(buf, 1, 1 << 22, f);
    fclose(f);
    /* An exact-size copy lets ASan see a read past the end. */
    uint8_t *p = malloc(n ? n : 1);
    memcpy(p, buf, n);
    free(buf);
    LLVMFuzzerTestOneInput(p, n);
    free(p);
    printf("ok %d - %s\n", number, name);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *base = strrchr(argv[0], '/');
    const char *target = strstr(base ? base : argv[0], "replay_") + strlen("replay_");
    char dir[1024];
    snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", target);
    struct dirent **list;
    const int n = scandir(dir, &list, NULL, alphasort);
    int bad = n < 0, count = 0;
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') bad |= replay(dir, list[i]->d_name, ++count);
        free(list[i]);
    }
    if (n >= 0) free(list);
    printf("1..%d\n", count);
    return bad || count == 0;
}
