// The entries of the library. A call comes as the bytes of its struct, in the order of its fields.
#include <cstring>

#include "fold_stream.cuh"
#include "pool_few.cuh"
#include "queries.cuh"

namespace {

// Let a kernel have so much shared memory.
template <class Call>
int allow_bytes(void (*kernel)(Call), size_t bytes) {
    if (bytes <= 48 * 1024) return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <class Call>
int launch(void (*kernel)(Call), const Call &call, long long blocks, int threads, size_t bytes,
           bool overlaps, void *where) {
    const int error = allow_bytes(kernel, bytes);
    if (error) return error;
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

// Launch in clusters of `ranks` blocks, which may be more than all devices have.
template <class Call>
int launch_clusters(void (*kernel)(Call), const Call &call, int clusters, int ranks, int threads,
                    size_t bytes, void *where) {
    int error = allow_bytes(kernel, bytes);
    if (!error && ranks > 8) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error) return error;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = ranks;
    together.val.clusterDim.y = together.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(clusters * ranks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <class Call>
Call call_of(const void *bytes) {
    Call call;
    std::memcpy(&call, bytes, sizeof call);
    return call;
}

// Whether small steps of blocks of 4 go through a kernel of their own, in one launch.
constexpr bool FEW_POOLS = true;

template <int SLICES>
int launch_stream(const FoldChunks &call, void *where) {
    const int clusters = (int)((places(call) + PARTS - 1) / PARTS);
    return launch_clusters(fold_stream<SLICES>, call, clusters, SLICES, Shape<SLICES>::THREADS,
                           sizeof(StreamShared<SLICES>), where);
}

// Fold, in slices so narrow that 132 multiprocessors have work but take all clusters at once: 7 of
// sixteen, of which each has one block of threads, or 28 of eight, of which each has two.
int launch_folding(const FoldChunks &call, void *where) {
    const long long clusters = (places(call) + PARTS - 1) / PARTS;
    const int error = clusters <= 7    ? launch_stream<16>(call, where)
                      : clusters <= 28 ? launch_stream<8>(call, where)
                                       : launch_stream<4>(call, where);
    if (error || takes_one_launch(call) || !call.saves.count) return error;
    return launch(write_banks, call, call.saves.count, FOLD_THREADS, 0, true, where);
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
    if (FEW_POOLS && call.blocks <= FEW_BLOCKS && call.saves.count <= FEW_ENTRIES) {
        const int clusters = 1 + (call.blocks + POOL_RANKS - 1) / POOL_RANKS;
        return launch_clusters(pool_few, call, clusters, POOL_RANKS, POOL_THREADS, 0, where);
    }
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
    return launch_folding(call_of<FoldChunks>(bytes), where);
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
