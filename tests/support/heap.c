#include "tests/support/heap.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int64_t now_bytes, peak_bytes;
static uint64_t n_calls;

/* Atomics by the compiler's names: they make no call, and may run inside malloc. */
static void count(int64_t change)
{
    const int64_t now = __atomic_add_fetch(&now_bytes, change, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&peak_bytes, __ATOMIC_RELAXED);
    while (now > peak && !__atomic_compare_exchange_n(&peak_bytes, &peak, now, 1, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {}
    if (change > 0) __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED);
}

int64_t fl_heap_now(void) { return __atomic_load_n(&now_bytes, __ATOMIC_RELAXED); }
int64_t fl_heap_peak(void) { return __atomic_load_n(&peak_bytes, __ATOMIC_RELAXED); }
uint64_t fl_heap_calls(void) { return __atomic_load_n(&n_calls, __ATOMIC_RELAXED); }
void fl_heap_mark(void) { __atomic_store_n(&peak_bytes, fl_heap_now(), __ATOMIC_RELAXED); }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *p);

static void on_malloc(const volatile void *p, size_t n)
{
    (void)p;
    count((int64_t)n);
}

static void on_free(const volatile void *p)
{
    if (p) count(-(int64_t)__sanitizer_get_allocated_size(p));
}

void fl_heap_watch(void)
{
    if (__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0) return;
    fputs("the sanitizer takes no hooks\n", stderr);
    exit(3);
}

int64_t fl_memory_held(void) { return fl_heap_now(); }

#else

/* glibc takes these definitions instead of its own, for its own calls and those of all libraries.
 */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static void *counted(void *p)
{
    if (p) count((int64_t)malloc_usable_size(p));
    return p;
}

void *malloc(size_t n) { return counted(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }
void *aligned_alloc(size_t align, size_t n) { return counted(__libc_memalign(align, n)); }

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = counted(__libc_memalign(align, n));
    if (!p) return 12; /* ENOMEM; errno stays as it was */
    *out = p;
    return 0;
}

void *realloc(void *old, size_t n)
{
    const int64_t was = old ? (int64_t)malloc_usable_size(old) : 0;
    /* While it moves, both stand side by side. */
    void *p = counted(__libc_realloc(old, n));
    if (p || n == 0) count(-was);
    return p;
}

void free(void *p)
{
    if (p) count(-(int64_t)malloc_usable_size(p));
    __libc_free(p);
}

void fl_heap_watch(void) {}

int64_t fl_memory_held(void)
{
    long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lld %lld", &pages, &resident) != 2) {
        fputs("/proc/self/statm cannot be read\n", stderr);
        exit(3);
    }
    fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

#endif
