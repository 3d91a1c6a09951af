// The entry of the library: one launch for few pairs, two for many.
#include <cuda_runtime.h>

#include "sort.cuh"

namespace {

// Launch a kernel, `follows` if it comes right after one of ours: then its launch is prepared while
// that one ends, and it waits by itself. What else comes before may be branches of a graph.
int launch(void (*kernel)(Call), const Call &call, int blocks, int threads, void *where,
           bool follows) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = follows ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <class Id>
int sort(const Call &call, int chunks, int threads, void *where) {
    if (chunks == 1) return launch(place_pairs<Id, false>, call, 1, threads, where, false);
    const int error = launch(count_pairs<Id>, call, chunks, MOST_THREADS, where, false);
    if (error) return error;
    return launch(place_pairs<Id, true>, call, chunks, MOST_THREADS, where, true);
}

}  // namespace

extern "C" {

const char *blocks_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Sort pairs by expert, `chunks` of `chunk` pairs; a block of `threads`, no fewer than experts, takes a
// single one. `counts` has room for 2 * ((num_experts + 1) / 2) numbers of 16 bits a chunk, if there
// are several. Up to 512 experts, 65535 pairs a chunk. Returns a cudaError_t.
int expert_blocks_call(const void *experts, int is_wide, void *counts, int *slots, int *whose,
                       int *member, int *place, int pairs, int chunk, int chunks, int threads,
                       int num_experts, int shift, int limit, void *where) {
    const Call call = {experts, static_cast<unsigned *>(counts), slots, whose, member, place, pairs,
                       chunk,   num_experts, shift, limit};
    return is_wide ? sort<long long>(call, chunks, threads, where)
                   : sort<int>(call, chunks, threads, where);
}
}
