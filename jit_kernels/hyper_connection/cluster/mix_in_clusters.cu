// Streams mixed into one by clusters of blocks, in one launch that reads them once.
#include "device/tensor_map.cuh"
#include "gate.cuh"
#include "multiplier.cuh"

namespace {

// Make barriers. The courier does not wait for the cluster: what is fetched first is the block's own.
template <class Memory>
__device__ inline void begin(const Tensors &tensors, Memory &shared, int warp) {
    constexpr int MAKER = MULTIPLIERS + MIXERS + COURIER;
    if (threadIdx.x == MAKER * 32) {
        ask_for(tensors.streams);
        if (Memory::OWED) ask_for(tensors.result);
        make_barriers(shared);
    }
    __syncthreads();
    arrive_at_cluster();
    if (warp != MAKER) await_cluster();
}

// What the last warps do, one each.
template <bool HEAD, class Memory>
__device__ inline void run_other(const Call &call, const Tensors &tensors, const Part &part,
                                 Memory &shared, int other) {
    if (other < COURIER) {
        run_adder(part, shared);
    } else if (other == COURIER) {
        run_courier<!HEAD>(call, tensors, part, shared);
    } else if (other == GATER) {
        run_gater<HEAD>(call, tensors, part, shared);
    } else if (!HEAD) {
        run_balancer(call, part, shared);
    }
}

// Mix streams.
//
// EIGHTS  lines of `fn` by eight: 3 with gates and matrix, for streams that a result is owed to, whose
//         mix is normed; 1 for the head
template <int EIGHTS>
__global__ void __launch_bounds__(THREADS, 1)
    mix_streams(const __grid_constant__ Call call, const __grid_constant__ Tensors tensors) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto &shared = *reinterpret_cast<Shared<EIGHTS> *>(memory);
    const Part part(call);
    const int warp = warp_number(), mixer = warp - MULTIPLIERS, other = mixer - MIXERS;
    if (mixer < 0) {
        typename Weights<EIGHTS>::Asked asked(call, part, warp);
        begin(tensors, shared, warp);
        take_registers<MULTIPLIER_REGISTERS>();
        run_multiplier(call, part, shared, warp, asked);
    } else if (other < 0) {
        begin(tensors, shared, warp);
        give_registers<MIXER_REGISTERS>();
        run_mixer<(EIGHTS > 1)>(call, part, shared, mixer);
    } else {
        begin(tensors, shared, warp);
        give_registers<OTHER_REGISTERS>();
        run_other<EIGHTS == 1>(call, tensors, part, shared, other);
    }
    // No block ends while others may still write into its shared memory.
    __syncwarp();
    meet_cluster();
}

using Kernel = void (*)(Call, Tensors);
struct Choice {
    Kernel kernel;
    int bytes;  // of shared memory
};
constexpr Choice OF_HEAD = {mix_streams<1>, sizeof(Shared<1>)};
constexpr Choice OF_BLOCK = {mix_streams<3>, sizeof(Shared<3>)};

struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    Launch(int ranks, int clusters, int bytes, bool early, cudaStream_t stream) {
        attributes[0] = early_launch(early);
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim = {(unsigned)ranks, 1, 1};
        config.gridDim = dim3(clusters * ranks);
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
};

cudaError_t count_groups(const Choice &choice, int ranks, int *groups) {
    cudaError_t error = cudaFuncSetAttribute(
        choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.bytes);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(choice.kernel,
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error != cudaSuccess) return error;
    Launch launch(ranks, 1, choice.bytes, false, nullptr);
    launch.config.attrs++;
    launch.config.numAttrs--;
    return cudaOccupancyMaxActiveClusters(groups, choice.kernel, &launch.config);
}

// Describe channels of tokens, of which a copy takes strips of 128 bytes of a tile.
//
// streams  how many there are, all of which a copy takes; with a stride of 0 there is one
// strips   how many a copy takes
cudaError_t describe(CUtensorMap &tensor, const void *first, long long token_stride,
                     long long stream_stride, unsigned streams, unsigned strips, const Call &call) {
    static const Describe function = find_describe();
    if (function == nullptr) return cudaErrorNotSupported;
    const bool one = stream_stride == 0;
    const cuuint64_t size[4] = {STRIP, (cuuint64_t)call.tokens, one ? 1u : streams,
                                (cuuint64_t)call.width / STRIP};
    const cuuint64_t stride[3] = {call.tokens > 1 ? (cuuint64_t)token_stride * 2 : LINE_BYTES,
                                  one ? LINE_BYTES : (cuuint64_t)stream_stride * 2, LINE_BYTES};
    const cuuint32_t box[4] = {STRIP, TOKENS, one ? 1u : streams, strips};
    const cuuint32_t step[4] = {1, 1, 1, 1};
    const CUresult result = function(
        &tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(first), size, stride, box,
        step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

extern "C" {

const char *mix_in_clusters_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Prepare the current device for calls with clusters of `ranks` blocks; return how many clusters it
// holds at once, 0 if none.
int mix_in_clusters_groups(int ranks) {
    int least = 1 << 30;
    for (const Choice &choice : {OF_HEAD, OF_BLOCK}) {
        int groups = 0;
        if (count_groups(choice, ranks, &groups) != cudaSuccess) groups = 0;
        least = groups < least ? groups : least;
    }
    // An error is told by the 0, and is not left for others to find.
    cudaGetLastError();
    return least;
}

// Mix streams by `groups` clusters of `ranks` blocks, 256 channels each; `ranks` is a power of two up
// to 16. Without `shares` `fn` is the head's; else `result`, which is contiguous, is first mixed into
// the streams, as `owed` says, `after` takes them, and what is mixed is normed by `weight`. With
// `early` the launch before does not write `fn`. Returns a cudaError_t.
int mix_in_clusters_call(const void *streams, long long token_stride, long long stream_stride,
                         const void *result, const float *owed, void *after, const void *fn,
                         const float *base, const float *scale, const float *weight, void *mixed,
                         float *shares, int tokens, int ranks, int groups, int iterations,
                         int early, float norm_eps, float hc_eps, void *where) {
    const int tiles = (tokens + TOKENS - 1) / TOKENS, width = ranks * SLICE;
    const Call call = {stream_stride == 0, owed, static_cast<const uint4 *>(fn), base, scale, weight,
                       static_cast<__nv_bfloat16 *>(mixed), shares, tokens, width, ranks,
                       iterations, tiles / groups, tiles % groups, norm_eps, hc_eps,
                       1.0f / (STREAMS * width), 1.0f / width};
    const Choice &choice = shares ? OF_BLOCK : OF_HEAD;
    const Launch launch(ranks, groups, choice.bytes, early, static_cast<cudaStream_t>(where));
    Tensors tensors = {};
    cudaError_t error =
        describe(tensors.streams, streams, token_stride, stream_stride, STREAMS, 1, call);
    if (error == cudaSuccess && result) {
        error = describe(tensors.result, result, width, 0, 1, STRIPS, call);
        if (error == cudaSuccess) {
            error = describe(tensors.after, after, STREAMS * width, width, STREAMS, STRIPS, call);
        }
    }
    if (error != cudaSuccess) return error;
    return cudaLaunchKernelEx(&launch.config, choice.kernel, call, tensors);
}
}
