#include "runtime/base/memory.h"

#include <unistd.h>

#include "runtime/base/groups.h"
#include "runtime/base/sysfile.h"

uint64_t fl_memory_total(void)
{
    const uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit = 0, left = 0;
    return fl_groups_memory(NULL, &limit, &left) && limit < total ? limit : total;
}

uint64_t fl_memory_available(void)
{
    uint64_t avail = 0, limit = 0, left = 0;
    if (fl_sys_number(NULL, "/proc/meminfo", "MemAvailable:", &avail))
        avail *= 1024;
    else
        avail = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return fl_groups_memory(NULL, &limit, &left) && left < avail ? left : avail;
}
