// Streams mixed into one, in one launch that reads them once.
#include "workers.cuh"

namespace {

// EIGHTS  lines of `fn` by eight: 3 with gates and matrix, 1 for the head
// EACH    ranks of a group that a lane hears: 1 up to 16, 2 up to 32
template <int EIGHTS, bool NORM, int EACH>
__global__ void __launch_bounds__(THREADS, 1)
    mix_streams(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared<EIGHTS> &shared = *reinterpret_cast<Shared<EIGHTS> *>(memory);
    const Part part(call);
    if (threadIdx.x < STAGES) make_barrier(&shared.full[threadIdx.x]);
    if (part.channels < call.slice) {
        // Copies leave the end of the slice alone: no NaN may lie there.
        for (int i = threadIdx.x; i < sizeof shared.streams / 16; i += blockDim.x) {
            reinterpret_cast<uint4 *>(shared.streams)[i] = make_uint4(0, 0, 0, 0);
        }
    }
    show_to_copies();
    Weights<EIGHTS>::ask(call, part);
    __syncthreads();
    cudaGridDependencySynchronize();
    work<EIGHTS, NORM, EACH>(call, part, shared);
    __syncthreads();
    Scratch *const scratch = static_cast<Scratch *>(call.scratch);
    if (threadIdx.x == 0 && atomicAdd(&scratch->left, 1) == gridDim.x - 1) {
        scratch->left = 0;
        scratch->told += (call.tokens + TOKENS - 1) / TOKENS;
    }
}

template <int EIGHTS, bool NORM, int EACH>
cudaError_t launch(const Call &call, int groups, cudaStream_t stream) {
    const auto kernel = mix_streams<EIGHTS, NORM, EACH>;
    constexpr int bytes = sizeof(Shared<EIGHTS>);
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    // The launch is prepared while the kernel before it ends; it waits for that by itself.
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(groups * call.ranks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <int EIGHTS, bool NORM>
cudaError_t launch(const Call &call, int groups, cudaStream_t stream) {
    return call.ranks <= 16 ? launch<EIGHTS, NORM, 1>(call, groups, stream)
                            : launch<EIGHTS, NORM, 2>(call, groups, stream);
}

}  // namespace

extern "C" {

const char *mix_streams_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

long long mix_streams_scratch_bytes(int blocks) {
    return sizeof(Scratch) +
           (long long)blocks * RING * TOKENS * (sizeof(uint2) + Told<3>::COUNT * sizeof(uint4));
}

// Mix streams by `groups` groups of `ranks` blocks that all fit onto the device at once, `slice`
// channels a block. `scratch` is zero before the first call; calls share a stream. Without `mixing`
// the head's four rows of `fn` alone are used; without `weight` there is no norm. Returns a
// cudaError_t.
int mix_streams_call(const void *streams, long long token_stride, long long stream_stride,
                     const float *fn, const float *base, const float *scale, const float *weight,
                     void *mixed, float *post, float *mixing, void *scratch, int tokens, int width,
                     int slice, int ranks, int groups, int iterations, float norm_eps, float hc_eps,
                     void *where) {
    const Call call = {static_cast<const __nv_bfloat16 *>(streams), token_stride, stream_stride,
                       fn, base, scale, weight, static_cast<__nv_bfloat16 *>(mixed), post, mixing,
                       scratch, tokens, width, slice, ranks, iterations, norm_eps, hc_eps,
                       1.0f / (STREAMS * width), 1.0f / width};
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    if (!mixing) return launch<1, false>(call, groups, stream);
    return weight ? launch<3, true>(call, groups, stream) : launch<3, false>(call, groups, stream);
}
}
