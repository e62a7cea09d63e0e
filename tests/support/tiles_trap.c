/* Tile instructions that the CPU refuses, carried out by tests/support/tiles.c. */
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "tests/support/tiles.h"

#if defined(__x86_64__)

/* An instruction of the VEX group of tiles, taken apart. */
typedef struct insn {
    int opcode, prefix; /* prefix: 0, 1 = 66, 2 = F3, 3 = F2 */
    int mod, reg, rm, second;
    int length;
    int64_t base, index; /* of the memory operand: address, and what the index register adds */
} insn;

/* Register number in an instruction -> its place among the saved ones. */
static int64_t general(const ucontext_t *u, int r)
{
    static const int place[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return u->uc_mcontext.gregs[place[r]];
}

/* The memory operand behind the byte p (ModRM); returns the bytes it takes. */
static int operand(const ucontext_t *u, const uint8_t *p, int high_base, int high_index, insn *o)
{
    int n = 1, base = o->rm;
    o->index = 0;
    if (o->rm == 4) {
        const int sib = p[n++], index = (sib >> 3 & 7) | high_index << 3;
        base = sib & 7;
        if (index != 4) o->index = general(u, index) << (sib >> 6);
    }
    int32_t far = 0;
    const bool none = o->mod == 0 && base == 5;
    if (o->mod == 1) far = (int8_t)p[n++];
    if (o->mod == 2 || none) {
        memcpy(&far, p + n, 4);
        n += 4;
    }
    o->base = far + (none ? 0 : general(u, base | high_base << 3));
    if (none && o->rm == 5) o->base += (int64_t)(p + n); /* relative to the next instruction */
    return n;
}

static bool take_apart(const ucontext_t *u, const uint8_t *p, insn *o)
{
    if (p[0] != 0xc4 || (p[1] & 31) != 2 || (p[2] & 0x84) != 0) return false;
    o->prefix = p[2] & 3;
    o->second = ~p[2] >> 3 & 15;
    o->opcode = p[3];
    o->mod = p[4] >> 6;
    o->reg = p[4] >> 3 & 7;
    o->rm = p[4] & 7;
    o->length = 4 + (o->mod == 3 ? 1 : operand(u, p + 4, !(p[1] & 0x20), !(p[1] & 0x40), o));
    return true;
}

static bool carry_out(const insn *o)
{
    if (o->opcode == 0x49 && o->prefix == 0 && o->mod == 3)
        fl_tile_release();
    else if (o->opcode == 0x49 && o->prefix == 0)
        fl_tile_config((const void *)o->base);
    else if (o->opcode == 0x49 && o->prefix == 3 && o->mod == 3)
        fl_tile_zero(o->reg);
    else if (o->opcode == 0x4b && o->prefix == 3 && o->mod != 3)
        fl_tile_load(o->reg, (const void *)o->base, o->index);
    else if (o->opcode == 0x4b && o->prefix == 2 && o->mod != 3)
        fl_tile_store(o->reg, (void *)o->base, o->index);
    else if (o->opcode == 0x5e && o->prefix == 3 && o->mod == 3)
        fl_tile_dot(o->reg, o->rm, o->second);
    else
        return false;
    return true;
}

static void refused(int number, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    insn o = {0};
    (void)info;
    const uint8_t *p = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];
    if (take_apart(u, p, &o) && carry_out(&o))
        u->uc_mcontext.gregs[REG_RIP] += o.length;
    else
        signal(number, SIG_DFL); /* it comes again and ends the program */
}

void fl_tiles_trap(void)
{
    struct sigaction a = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &a, NULL);
}

#else

void fl_tiles_trap(void) {}

#endif
