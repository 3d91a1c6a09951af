// The entries of the library. A call comes as the bytes of its struct, in the order of its fields.
#include <cstring>

#include "fold_wide.cuh"
#include "queries.cuh"

namespace {

// Let a kernel have so much shared memory.
template <class Call>
int allow_bytes(void (*kernel)(Call), size_t bytes) {
    if (bytes <= 48 * 1024) return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

// Launch in clusters of `ranks` blocks. A launch begins while the one before ends; each kernel waits
// for that by itself.
template <class Call>
int launch(void (*kernel)(Call), const Call &call, long long blocks, int ranks, int threads,
           size_t bytes, void *where) {
    const int error = allow_bytes(kernel, bytes);
    if (error) return error;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0] = early_launch();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = ranks;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = attributes;
    config.numAttrs = ranks > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <class Call>
Call call_of(const void *bytes) {
    Call call;
    std::memcpy(&call, bytes, sizeof call);
    return call;
}

// By clusters that make as many states each, no more than they can list.
int launch_wide(const FoldChunks &call, void *where) {
    const long long count = places(call), least = 1 + (count + WIDE_LIST - 2) / WIDE_LIST;
    const long long most = count < WIDE_CLUSTERS ? count : WIDE_CLUSTERS;
    const long long clusters = least > most ? least : most;
    return launch(fold_wide, call, clusters * WIDE_SLICES, WIDE_SLICES, WIDE, sizeof(WideShared),
                  where);
}

int launch_folding(const FoldChunks &call, void *where) {
    const int error = launch_wide(call, where);
    if (error || !call.saves.count) return error;
    return launch(write_banks, call, call.saves.count, 1, FOLD_THREADS, 0, where);
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
    return launch(pool_tokens, call_of<PoolTokens>(bytes), rows, 1, POOL_THREADS, 0, where);
}

// Advance chunks, blocks of 4, with as many blocks of threads as `resident` at most.
int pool_chunks_call(const void *bytes, int size, int resident, void *where) {
    if (size != sizeof(PoolChunks)) return cudaErrorInvalidValue;
    const auto call = call_of<PoolChunks>(bytes);
    const int most = call.blocks > call.saves.count ? call.blocks : call.saves.count;
    const int error = launch(pool_chunks, call, most < resident ? most : resident, 1, POOL_THREADS,
                             sizeof(PoolShared), where);
    if (error || !call.saves.count) return error;
    return launch(write_entries, call, call.saves.count, 1, POOL_THREADS, 0, where);
}

// Advance `rows` decoding rows, blocks of 128.
int fold_tokens_call(const void *bytes, int size, int rows, void *where) {
    if (size != sizeof(FoldTokens)) return cudaErrorInvalidValue;
    return launch(fold_tokens, call_of<FoldTokens>(bytes), rows, 1, FOLD_THREADS, 0, where);
}

// Advance chunks, blocks of 128.
int fold_chunks_call(const void *bytes, int size, void *where) {
    if (size != sizeof(FoldChunks)) return cudaErrorInvalidValue;
    return launch_folding(call_of<FoldChunks>(bytes), where);
}

// Make queries of 128 channels, the last 64 of which turn, on that many multiprocessors.
int turn_queries_call(const void *bytes, int size, int processors, void *where) {
    if (size != sizeof(Queries)) return cudaErrorInvalidValue;
    const auto call = call_of<Queries>(bytes);
    const long long shares = (long long)call.tokens * (call.padded / HEADS_AT_ONCE);
    const long long needed = (shares + QUERY_WARPS - 1) / QUERY_WARPS;
    const int resident = QUERY_BLOCKS * processors;
    return launch(turn_queries, call, needed < resident ? needed : resident, 1, QUERY_WARPS * 32, 0,
                  where);
}
}
