// The entry of the library: two launches, one that counts and one that places.
#include <cuda_runtime.h>

#include "sort.cuh"

namespace {

// Launch a kernel, `follows` if it comes right after one of ours: then its launch is prepared while
// that one ends, and it waits by itself. What else comes before may be branches of a graph.
int launch(void (*kernel)(Call), const Call &call, int blocks, void *where, bool follows) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(MOST_THREADS);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = follows ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <class Id>
int sort(const Call &call, int chunks, void *where) {
    const int error = launch(count_pairs<Id>, call, chunks, where, false);
    return error ? error : launch(place_pairs<Id>, call, chunks, where, true);
}

}  // namespace

extern "C" {

const char *blocks_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Sort pairs by expert, `chunks` of `chunk` pairs. `counts` has room for 2 * ((num_experts + 1) / 2)
// numbers of 16 bits a chunk. Up to 512 experts, 65535 pairs a chunk. Returns a cudaError_t.
int expert_blocks_call(const void *experts, int is_wide, void *counts, int *slots, int *whose,
                       int *member, int *place, int pairs, int chunk, int chunks, int num_experts,
                       int shift, int limit, void *where) {
    const Call call = {experts, static_cast<unsigned *>(counts), slots, whose, member, place, pairs,
                       chunk,   num_experts, shift, limit};
    return is_wide ? sort<long long>(call, chunks, where) : sort<int>(call, chunks, where);
}
}
