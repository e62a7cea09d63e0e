# make                 build/fourleaf (release)
# make demo            install what is missing, build, quantize clover-tiny and ask it a question
# make test            install what is missing, build and run every test; last line "N passed, N failed, N skipped"
# make VARIANT=asan test       release | debug | asan (with ubsan) | tsan
# make check           layer direction, self-contained headers, fl_ prefix, formatting, and that no kernel
#                      takes more instructions per weight (make instructions accepts new figures)
# make eval-tiny       quantize clover-tiny and measure it on its held-out prompts (minutes)
# make fuzz SECONDS=N  libFuzzer (clang) on every parser, N seconds each
# make CUDA=0          leave the CUDA toolkit out           make V=1   show commands
# make MINIMAL=1       on a machine with only a compiler: the library of quant, kernels, device and
#                      offload, and the measurements of kernels and reads, in build/minimal-release
.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:

VARIANT ?= release
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
NVCC    ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA    ?= $(if $(NVCC),1,0)
SMALL   := $(filter 1,$(MINIMAL))
B       := build/$(if $(SMALL),minimal-)$(VARIANT)
Q       := $(if $(V),,@)
SECONDS ?= 20

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith \
        -Wwrite-strings -Wundef -Wno-psabi $(if $(WERROR),-Werror)
# -ffp-contract=off: the numeric law says where a fused multiply-add is used, not the compiler.
CFLAGS_BASE := -std=c11 -g $(WARN) -fno-math-errno -ffp-contract=off -pthread -MMD -MP
CPPFLAGS_BASE := -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 $(if $(SMALL),-DFL_MINIMAL)
ARCH   := -march=x86-64-v2
LDLIBS_BASE := $(if $(SMALL),,-luring -ljansson -lpcre2-8 -lutf8proc -lxxhash -lhwloc) -lm

CFLAGS_release := -O3 -DNDEBUG
CFLAGS_debug   := -O0
CFLAGS_asan    := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
CFLAGS_tsan    := -O1 -fno-omit-frame-pointer -fsanitize=thread
ifeq ($(origin CFLAGS_$(VARIANT)),undefined)
$(error VARIANT=$(VARIANT) is none of: release debug asan tsan)
endif
ifneq ($(and $(SMALL),$(filter-out all bench clean,$(MAKECMDGOALS))),)
$(error MINIMAL=1 builds a library and two measurements; make $(MAKECMDGOALS) needs the whole program)
endif
ALL_CFLAGS = $(CFLAGS_BASE) $(CFLAGS_$(VARIANT)) $(CFLAGS)

# Sources are found, not listed. runtime/main.c is the program; all else is one library.
FOLDERS := $(if $(SMALL),runtime/base runtime/device,runtime/* runtime/*/*) quant offload kernels kernels/*
# JSON and hashing come from libraries.
LEFT_OUT := runtime/main.c $(if $(SMALL),runtime/base/json.c runtime/base/hash.c offload/plan_text.c \
    offload/rates.c offload/forecast.c offload/trace.c offload/profile.c)
SRC   := $(filter-out $(LEFT_OUT),$(wildcard $(FOLDERS:%=%/*.c)))
CU    := $(if $(filter 1,$(CUDA)),$(wildcard runtime/device/*/*.cu kernels/*/*.cu))
OBJ   := $(SRC:%.c=$(B)/%.o) $(CU:%=$(B)/%.o)
LIB   := $(B)/libfourleaf.a
PROG  := $(B)/fourleaf
TEST_SRC := $(wildcard tests/*/test_*.c)
TESTS := $(TEST_SRC:%.c=$(B)/%)
TEST_TOOLS := $(patsubst %.c,$(B)/%,$(wildcard tests/tools/*.c))
SUPPORT := $(patsubst %.c,$(B)/%.o,$(wildcard tests/support/*.c))
FUZZ  := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
REPLAY := $(FUZZ:%=$(B)/tests/fuzz/replay_%)
EVAL_SHARED := tests/eval/common.c tests/eval/distributions.c
EVAL  := $(patsubst %.c,$(B)/%,$(filter-out $(EVAL_SHARED),$(wildcard tests/eval/*.c)))
BENCH := $(patsubst %.c,$(B)/%,$(if $(SMALL),bench/kernels.c bench/io.c,$(wildcard bench/*.c)))
# These want a file to write or to measure: make bench only builds them.
BENCH_ASKED := $(B)/bench/synth $(B)/bench/model $(B)/bench/traces
# What measurements share; an archive, so that each links only what it uses.
BENCH_LIB := $(B)/bench/libbench.a
BENCH_OBJ := $(patsubst %.c,$(B)/%.o,$(if $(SMALL),$(wildcard bench/support/cases*.c) \
    bench/support/peak.c bench/support/report.c,$(wildcard bench/support/*.c) \
    $(addprefix tests/support/,bytes.c make_model.c make_tensors.c tmp.c)))

.PHONY: all demo eval-tiny test test-quick test-programs test-all test-peers bench fuzz check instructions deps clean install
all: $(if $(SMALL),$(LIB) $(BENCH),$(PROG) $(if $(filter release,$(VARIANT)),build/fourleaf))

build/fourleaf: build/release/fourleaf
	@ln -f $< $@

$(LIB): $(OBJ)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# Only these translation units may use wider vectors than the baseline.
$(B)/kernels/x86/%_avx2.o $(B)/quant/%_avx2.o $(B)/tests/support/%_avx2.o: ARCH := -march=x86-64-v3
$(B)/kernels/x86/%_avxvnni.o: ARCH := -march=x86-64-v3 -mavxvnni
$(B)/kernels/x86/%_avx512vnni.o: ARCH := -march=x86-64-v4 -mavx512vnni
$(B)/kernels/x86/%_amx.o: ARCH := -march=x86-64-v4 -mavx512vnni -mamx-tile -mamx-int8

$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(if $(V),,@echo "CC $<")
	$(Q)$(CC) $(CPPFLAGS_BASE) $(CPPFLAGS) $(ALL_CFLAGS) $(ARCH) -c -o $@ $<

# One binary for machines with and without a driver: libcudart_static looks for libcuda at run time.
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS ?= 80 86 89 90 120
NVCC_FLAGS := -O3 -std=c++17 -lineinfo -I. -Werror all-warnings \
    $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS)) \
    -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics
LDLIBS_BASE += $(if $(CU),$(CUDA_HOME)/lib64/libcudart_static.a -ldl -lrt)
$(B)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(if $(V),,@echo "NVCC $<")
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(PROG): $(B)/runtime/main.o $(LIB)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $< $(LIB) $(LDFLAGS) $(LDLIBS_BASE) $(LDLIBS)

# Tests keep their asserts in every variant.
$(BENCH_LIB): $(BENCH_OBJ)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
$(B)/tests/%: tests/%.c $(SUPPORT) $(BENCH_LIB) $(LIB)
	@mkdir -p $(@D)
	$(if $(V),,@echo "LD $@")
	$(Q)$(CC) $(CPPFLAGS_BASE) $(CPPFLAGS) $(ALL_CFLAGS) -UNDEBUG $(ARCH) -o $@ $< $(SUPPORT) $(BENCH_LIB) $(LIB) $(LDFLAGS) -lcmocka $(LDLIBS_BASE) $(LDLIBS)
$(EVAL): $(B)/tests/eval/%: tests/eval/%.c $(EVAL_SHARED:%.c=$(B)/%.o) $(BENCH_LIB) $(LIB)
	$(if $(V),,@echo "LD $@")
	$(Q)$(CC) $(CPPFLAGS_BASE) $(CPPFLAGS) $(ALL_CFLAGS) $(ARCH) -o $@ $< $(EVAL_SHARED:%.c=$(B)/%.o) $(BENCH_LIB) $(LIB) $(LDFLAGS) $(LDLIBS_BASE) $(LDLIBS)
$(B)/tests/bench/test_programs: $(BENCH_ASKED)
$(B)/tests/support/%.o: ALL_CFLAGS += -UNDEBUG
$(B)/tests/fuzz/replay_%: tests/fuzz/fuzz_%.c tests/fuzz/replay.c $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_BASE) $(CPPFLAGS) $(ALL_CFLAGS) -UNDEBUG $(ARCH) -o $@ $< tests/fuzz/replay.c $(LIB) $(LDFLAGS) $(LDLIBS_BASE) $(LDLIBS)
$(B)/bench/%: bench/%.c $(BENCH_LIB) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_BASE) $(CPPFLAGS) $(ALL_CFLAGS) $(ARCH) -o $@ $< $(BENCH_LIB) $(LIB) $(LDFLAGS) $(LDLIBS_BASE) $(LDLIBS)

# Evaluations and measurements are not run, but must not fall behind what they call.
test-programs: all $(TESTS) $(TEST_TOOLS) $(REPLAY) $(if $(filter release,$(VARIANT)),$(EVAL) $(BENCH))
# The tests of the kernels once more, on the CPUs that qemu has.
EMULATED := $(if $(filter release,$(VARIANT)),$(foreach cpu,Haswell Nehalem,"tests/emulated.sh $(cpu) $(B)"))
test: deps
	@$(MAKE) --no-print-directory VARIANT=$(VARIANT) test-programs
	@tests/run.sh $(VARIANT) $(EMULATED) $(TESTS) $(REPLAY)
# What a change must pass before it is shared: the same tests without the install step.
test-quick: test-programs
	@tests/run.sh $(VARIANT) $(EMULATED) $(TESTS) $(REPLAY)
test-all: test
	@FL_TEST_LONG=1 tests/run.sh $(VARIANT) $(TESTS) $(REPLAY)
test-peers: all
	@tests/peers/run.sh

# Minutes: clover-tiny on its held-out prompts, and its text over placements, threads and chunks.
eval-tiny: all $(EVAL)
	@tests/eval/run.sh $(B)

demo: deps
	@$(MAKE) --no-print-directory all
	@tests/demo.sh

deps:
	@tests/deps.sh
bench: $(BENCH)
	@for p in $(filter-out $(BENCH_ASKED),$(BENCH)); do $$p || exit 1; done

fuzz:
	@tests/fuzz/run.sh $(SECONDS) $(FUZZ)

CALLS := $(B)/tests/check/kernel_calls
check: $(LIB) $(if $(filter release,$(VARIANT)),$(CALLS))
	@tests/check/layers.sh
	@tests/check/headers.sh
	@tests/check/symbols.sh $(filter-out %.cu.o,$(OBJ))
	@tests/check/format.sh
	$(if $(filter release,$(VARIANT)),@tests/check/instructions.sh $(B))
# Takes the figures of the build at hand as those that must not grow.
instructions: $(LIB) $(CALLS)
	@tests/check/instructions.sh $(B) --accept

PREFIX ?= /usr/local
install: all
	install -D -m 755 build/fourleaf $(DESTDIR)$(PREFIX)/bin/fourleaf
clean:
	rm -rf build

-include $(OBJ:.o=.d) $(SUPPORT:.o=.d) $(BENCH_OBJ:.o=.d) $(EVAL_SHARED:%.c=$(B)/%.d) $(B)/runtime/main.d
-include $(addsuffix .d,$(TESTS) $(CALLS) $(TEST_TOOLS) $(EVAL) $(REPLAY) $(BENCH))
