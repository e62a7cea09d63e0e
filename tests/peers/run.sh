#!/usr/bin/env bash
# What `make test-peers` runs: everything that needs other programs, from PyPI only.
#   1. a venv and llama.cpp (from the source inside llama-cpp-python) under build/peers
#   2. makes all goldens again and compares them with the committed ones
#   3. compares build/fourleaf with transformers, tokenizers, ggml, llama.cpp, our PyTorch reference
#   4. compares our quantizer with llama.cpp's (its tools are a second build, about ten minutes)
# usage: tests/peers/run.sh [STEP...]
#        setup goldens blocks transformers tokenizers converter llama block tools perplexity quant
#        without a step: all of these. Ends with "N passed, N failed".
#        Only when asked for, since they need 45, 8 and 5 GB of disk for a synthetic model, which is
#        removed again: rate (weights per second and memory of quantize beside llama.cpp's), memory
#        (importance under a cap), capped (tokens per second under a cap beside llama.cpp's, which
#        takes tools), reads (beside those of fio, which must be installed) and speed
#        (tokens per second beside llama.cpp's, which takes tools
#        and tools_avx2; raw samples in build/peers/speed.jsonl; half an hour without other work).
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$PWD/build/peers
kept=${PEERS_DIR:-$work} # where setup put the venv and llama.cpp; another checkout's may serve
venv=$kept/venv
source_dir=$kept/llama-cpp-python
llama_build=$kept/llama
tools_bin=$kept/llama-tools/bin
export LLAMA_CPP_LIB_PATH=$llama_build/bin
export PYTHONPATH=$source_dir:$PWD/tests/peers PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=2
export FOURLEAF=${FOURLEAF:-$PWD/build/fourleaf}
tiny=tests/clover_tiny
mkdir -p "$work" "$kept"

# GGML_NATIVE off: the AMX path of this source crashed when built with gcc 12.
build_llama() {
    [ -d "$source_dir" ] || {
        "$venv/bin/pip" download -q --no-deps --no-binary llama-cpp-python -d "$kept/sdist" \
            llama-cpp-python==0.3.36 && mkdir -p "$source_dir" &&
            tar xzf "$kept"/sdist/llama_cpp_python-*.tar.gz -C "$source_dir" --strip-components=1
    } || return 1
    [ -e "$llama_build/bin/libllama.so" ] && return 0
    cmake -S "$source_dir/vendor/llama.cpp" -B "$llama_build" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
        -DGGML_OPENMP=OFF -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=OFF \
        -DLLAMA_OPENSSL=OFF >"$kept/llama.log" 2>&1 &&
        cmake --build "$llama_build" --target llama -j "$(nproc)" >>"$kept/llama.log" 2>&1 ||
        { tail -n 30 "$kept/llama.log"; return 1; }
}

# llama.cpp's own programs as a user of this machine would build them, all of it for its CPU, so that
# the rival's quantizer is as fast as it gets; without AMX, see above.
tools() {
    local flags="-march=native -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    [ -x "$tools_bin/llama-quantize" ] && [ -x "$tools_bin/llama-perplexity" ] && return 0
    cmake -S "$source_dir/vendor/llama.cpp" -B "$kept/llama-tools" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
        -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_OPENSSL=OFF >"$kept/llama-tools.log" 2>&1 &&
        cmake --build "$kept/llama-tools" -j "$(nproc)" --target llama-quantize llama-imatrix \
            llama-perplexity llama-bench >>"$kept/llama-tools.log" 2>&1 ||
        { tail -n 30 "$kept/llama-tools.log"; return 1; }
}

# The same for a CPU with AVX2 at most: the build of setup has these flags already.
tools_avx2() {
    [ -x "$llama_build/bin/llama-bench" ] && [ -x "$llama_build/bin/llama-perplexity" ] && return 0
    cmake -S "$source_dir/vendor/llama.cpp" -B "$llama_build" -DLLAMA_BUILD_TOOLS=ON \
        -DLLAMA_BUILD_APP=OFF >>"$kept/llama.log" 2>&1 &&
        cmake --build "$llama_build" -j "$(nproc)" --target llama-perplexity llama-bench \
            >>"$kept/llama.log" 2>&1 ||
        { tail -n 30 "$kept/llama.log"; return 1; }
}

setup() {
    command -v cmake >/dev/null || { echo "cmake is missing: apt-get install cmake g++"; return 1; }
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv" || return 1
    "$venv/bin/pip" install -q -r tests/peers/requirements.txt || return 1
    build_llama
}

goldens() {
    local out=$work/golden make=tests/golden
    rm -rf "$out"
    "$venv/bin/python" $make/make_blocks.py "$out/blocks" &&
        "$venv/bin/python" $make/make_tokenizer.py "$out/tokenizer" &&
        "$venv/bin/python" $make/make_model.py "$out/model" &&
        "$venv/bin/python" $make/make_quantized.py "$out/model" &&
        "$venv/bin/python" $make/make_chat.py "$out/chat" \
            "$source_dir/vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja" || return 1
    if [ -f $tiny/model/tokenizer.json ]; then
        "$venv/bin/python" $make/make_tokenizer.py "$out/tokenizer" --json \
            $tiny/model/tokenizer.json clover_tiny || return 1
    fi
    "$venv/bin/python" tests/peers/compare_goldens.py "$out" tests/golden
}

blocks() { "$venv/bin/python" tests/peers/compare_blocks.py; }
transformers() { "$venv/bin/python" tests/peers/compare_transformers.py; }
tokenizers() { "$venv/bin/python" tests/peers/compare_tokenizers.py "$work"; }
converter() { "$venv/bin/python" tests/peers/compare_converter.py "$work"; }
llama() {
    "$venv/bin/python" tests/peers/compare_llama.py $tiny/model $tiny/heldout.jsonl "$work/compare"
}
block() { "$venv/bin/python" tests/peers/compare_block.py $tiny "$work"; }
perplexity() {
    "$venv/bin/python" tests/peers/compare_perplexity.py $tiny/model $tiny/heldout.jsonl \
        "$work/compare"
}
quant() { "$venv/bin/python" tests/peers/compare_quant.py "$work/quant" "$tools_bin"; }
memory() {
    local failed=0
    "$venv/bin/python" tests/peers/big_checkpoint.py "$work/medium" --layers 3 --shards 3 &&
        "$venv/bin/python" tests/peers/importance_memory.py "$work/medium" "$work/memory" ||
        failed=1
    rm -rf "$work/medium" "$work/memory"
    return $failed
}
rate() {
    local failed=0
    [ -d "$work/big" ] || "$venv/bin/python" tests/peers/big_checkpoint.py "$work/big" || return 1
    "$venv/bin/python" tests/peers/quantize_rate.py "$work/big" "$work/rate" \
        "$tools_bin/llama-quantize" || failed=1
    rm -rf "$work/big" "$work/rate"
    return $failed
}

speed() {
    local model=${SPEED_MODEL:-$work/speed.gguf} failed=0
    make build/release/bench/synth build/release/bench/model || return 1
    [ -e "$model" ] || build/release/bench/synth "$model" || return 1
    "$venv/bin/python" tests/peers/compare_speed.py "$model" build/release/bench/model \
        "$work/speed.jsonl" native="$tools_bin" avx2="$llama_build/bin" || failed=1
    [ -n "${SPEED_MODEL:-}" ] || rm -f "$model"
    return $failed
}

# READS_FILE: a model of several GB on the drive to be measured.
reads() {
    command -v fio >/dev/null || { echo "fio is missing: apt-get install fio"; return 1; }
    local model=${READS_FILE:-$work/reads.gguf} failed=0
    make build/release/bench/synth build/release/bench/io || return 1
    [ -e "$model" ] || build/release/bench/synth "$model" || return 1
    "$venv/bin/python" tests/peers/compare_reads.py "$model" build/release/bench/io \
        "$work/reads.jsonl" || failed=1
    [ -n "${READS_FILE:-}" ] || rm -f "$model"
    return $failed
}

# CAPPED_MODEL: one of bench/synth. Control groups take root.
capped() {
    local model=${CAPPED_MODEL:-$work/capped.gguf} failed=0
    make all build/release/bench/synth build/release/bench/model || return 1
    [ -e "$model" ] || build/release/bench/synth "$model" || return 1
    "$venv/bin/python" tests/peers/compare_capped.py "$model" "$FOURLEAF" build/release/bench/model \
        "$tools_bin/llama-bench" "$work/capped.jsonl" || failed=1
    [ -n "${CAPPED_MODEL:-}" ] || rm -f "$model"
    return $failed
}

steps=("$@")
[ $# -gt 0 ] || steps=(
    setup goldens blocks transformers tokenizers converter llama block tools
    perplexity quant)
passed=0 failed=0
for step in "${steps[@]}"; do
    echo "== $step"
    if "$step"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $step"; fi
    [ "$step" != setup ] || [ $failed -eq 0 ] || break
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
