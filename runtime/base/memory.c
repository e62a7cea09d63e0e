#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number behind `key` at the start of a line of a small file. */
static bool read_number(const char *path, const char *key, uint64_t *v)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[128];
    bool found = false;
    const size_t k = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long x;
        if (strncmp(line, key, k) == 0 && sscanf(line + k, "%llu", &x) == 1) {
            *v = x;
            found = true;
        }
    }
    fclose(f);
    return found;
}

static bool cgroup_limit(uint64_t *limit, uint64_t *used)
{
    return (read_number("/sys/fs/cgroup/memory.max", "", limit) &&
            read_number("/sys/fs/cgroup/memory.current", "", used)) ||
           (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", limit) &&
            read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", used));
}

uint64_t fl_memory_total(void)
{
    const uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit = 0, used = 0;
    return cgroup_limit(&limit, &used) && limit < total ? limit : total;
}

uint64_t fl_memory_available(void)
{
    uint64_t avail = 0, limit = 0, used = 0;
    if (read_number("/proc/meminfo", "MemAvailable:", &avail)) {
        avail *= 1024;
    } else {
        avail = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    if (cgroup_limit(&limit, &used)) {
        const uint64_t left = limit > used ? limit - used : 0;
        if (left < avail) avail = left;
    }
    return avail;
}
