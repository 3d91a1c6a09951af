// The entries of the library. A call comes as the bytes of its struct, in the order of its fields.
#include <cstring>

#include "fold.cuh"
#include "queries.cuh"

namespace {

template <class Call>
int launch(void (*kernel)(Call), const Call &call, long long blocks, int threads, size_t bytes,
           bool overlaps, void *where) {
    if (bytes > 48 * 1024) {
        const cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return error;
    }
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = overlaps;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <class Call>
Call call_of(const void *bytes) {
    Call call;
    std::memcpy(&call, bytes, sizeof call);
    return call;
}

template <class Number, class Weight>
int turn_some(const Queries &call, int processors, void *where) {
    const long long shares = (long long)call.tokens * (call.padded / HEADS_AT_ONCE);
    const long long needed = (shares + QUERY_WARPS - 1) / QUERY_WARPS;
    const int resident = QUERY_BLOCKS<Number> * processors;
    return launch(turn_queries<Number, Weight>, call, needed < resident ? needed : resident,
                  QUERY_WARPS * 32, 0, false, where);
}

}  // namespace

extern "C" {

const char *compress_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Each takes `size` bytes of a call, and returns a cudaError_t, invalid arguments if they are not
// as many as the struct has.

// Advance `rows` decoding rows, blocks of 4.
int pool_tokens_call(const void *bytes, int size, int rows, void *where) {
    if (size != sizeof(PoolTokens)) return cudaErrorInvalidValue;
    return launch(pool_tokens, call_of<PoolTokens>(bytes), rows, POOL_THREADS, 0, false, where);
}

// Advance chunks, blocks of 4, with as many blocks of threads as `resident` at most.
int pool_chunks_call(const void *bytes, int size, int resident, void *where) {
    if (size != sizeof(PoolChunks)) return cudaErrorInvalidValue;
    const auto call = call_of<PoolChunks>(bytes);
    const int most = call.blocks > call.saves.count ? call.blocks : call.saves.count;
    const int error = launch(pool_chunks, call, most < resident ? most : resident, POOL_THREADS,
                             sizeof(PoolShared), false, where);
    if (error || !call.saves.count) return error;
    return launch(write_entries, call, call.saves.count, POOL_THREADS, 0, true, where);
}

// Advance `rows` decoding rows, blocks of 128.
int fold_tokens_call(const void *bytes, int size, int rows, void *where) {
    if (size != sizeof(FoldTokens)) return cudaErrorInvalidValue;
    return launch(fold_tokens, call_of<FoldTokens>(bytes), rows, FOLD_THREADS, 0, false, where);
}

// Advance chunks, blocks of 128.
int fold_chunks_call(const void *bytes, int size, void *where) {
    if (size != sizeof(FoldChunks)) return cudaErrorInvalidValue;
    const auto call = call_of<FoldChunks>(bytes);
    const long long parts = (long long)call.blocks + call.saves.count;
    const int error = launch(fold_chunks, call, parts * GROUPS, FOLD_WARPS * 32,
                             sizeof(FoldShared), false, where);
    if (error || !call.saves.count) return error;
    return launch(write_banks, call, call.saves.count, FOLD_THREADS, 0, true, where);
}

// Make queries of 128 channels, the last 64 of which turn, on that many multiprocessors.
int turn_queries_call(const void *bytes, int size, int is_bf16, int weights_bf16, int processors,
                      void *where) {
    using Bf16 = __nv_bfloat16;
    if (size != sizeof(Queries)) return cudaErrorInvalidValue;
    const auto call = call_of<Queries>(bytes);
    const auto run = is_bf16 ? (weights_bf16 ? turn_some<Bf16, Bf16> : turn_some<Bf16, float>)
                             : (weights_bf16 ? turn_some<float, Bf16> : turn_some<float, float>);
    return run(call, processors, where);
}
}
