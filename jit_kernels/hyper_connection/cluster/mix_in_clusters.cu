// Streams mixed into one by clusters of blocks, in one launch that reads them once.
#include "gate.cuh"
#include "mix_halves.cuh"
#include "multiply.cuh"

namespace {

// EIGHTS  lines of `fn` by eight: 3 with gates and matrix, 1 for the head
// HALVES  only write the sums of halves of the channels
template <int EIGHTS, bool NORM, bool HALVES>
__global__ void __launch_bounds__(THREADS, 1)
    mix_in_clusters(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    const Part part(call);
    const int warp = warp_number(), mixer = warp - MULTIPLIERS, other = mixer - MIXERS;
    if (threadIdx.x == 0) {
        shared.make_barriers();
        show_barriers();
    }
    Weights<EIGHTS>::ask(call, part);
    meet_cluster();
    cudaGridDependencySynchronize();
    if (mixer < 0) {
        take_registers<MULTIPLIER_REGISTERS>();
        run_multipliers<EIGHTS>(call, part, shared);
    } else if (other < 0) {
        give_registers<MIXER_REGISTERS>();
        if constexpr (HALVES) {
            run_freer(part, shared, mixer);
        } else {
            run_mixer<NORM>(call, part, shared, mixer);
        }
    } else {
        give_registers<OTHER_REGISTERS>();
        if (other < FETCHERS) {
            run_fetcher(call, part, shared, other);
        } else if (other == FETCHERS) {
            run_gater<EIGHTS == 1, HALVES>(call, part, shared);
        } else if (EIGHTS > 1 && !HALVES) {
            run_balancer(call, part, shared);
        }
    }
    // No block ends while others may still write into its shared memory.
    __syncwarp();
    meet_cluster();
}

template <bool NORM>
__global__ void __launch_bounds__(FINISHERS, 2)
    mix_halves(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int batches = (call.tokens + FINISHERS - 1) / FINISHERS, block = blockIdx.x;
    cudaGridDependencySynchronize();
    if (block < batches) {
        balance_token(call, block * FINISHERS + threadIdx.x);
    } else {
        finish_token<NORM>(call, block - batches, reinterpret_cast<float *>(memory));
    }
}

using Kernel = void (*)(Call);
constexpr Kernel KERNELS[] = {mix_in_clusters<1, false, false>, mix_in_clusters<3, false, false>,
                              mix_in_clusters<3, true, false>, mix_in_clusters<3, false, true>};

struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    Launch(int ranks, int clusters, int bytes, cudaStream_t stream) {
        // The launch is prepared while the kernel before it ends; it waits for that by itself.
        attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[0].val.programmaticStreamSerializationAllowed = 1;
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
static_assert(FINISHERS == THREADS);

cudaError_t count_groups(Kernel kernel, int ranks, int *groups) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             sizeof(Shared));
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error != cudaSuccess) return error;
    Launch launch(ranks, 1, sizeof(Shared), nullptr);
    launch.config.attrs++;
    launch.config.numAttrs--;
    return cudaOccupancyMaxActiveClusters(groups, kernel, &launch.config);
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
    for (const Kernel kernel : KERNELS) {
        int groups = 0;
        if (count_groups(kernel, ranks, &groups) != cudaSuccess) groups = 0;
        least = groups < least ? groups : least;
    }
    // An error is told by the 0, and is not left for others to find.
    cudaGetLastError();
    return least;
}

// Mix streams by `groups` clusters of `ranks` blocks, `slice` channels each; `ranks` is a power of
// two up to 16, `slice` a multiple of 8 up to 256. Without `mixing` the head's four rows of `fn`
// alone are used; without `weight` there is no norm. With `sums`, [tokens, 2, 28], it takes two
// clusters for all channels, up to 8,192, and there is a second launch; not for the head. Returns a
// cudaError_t.
int mix_in_clusters_call(const void *streams, long long token_stride, long long stream_stride,
                         const float *fn, const float *base, const float *scale,
                         const float *weight, void *mixed, float *post, float *mixing, float *sums,
                         int tokens, int width, int slice, int ranks, int groups, int iterations,
                         float norm_eps, float hc_eps, void *where) {
    const int halves = sums ? 2 : 1;
    const Call call = {static_cast<const __nv_bfloat16 *>(streams), token_stride, stream_stride,
                       fn, base, scale, weight, static_cast<__nv_bfloat16 *>(mixed), post, mixing,
                       sums, tokens, width, slice, ranks, halves, iterations, norm_eps, hc_eps,
                       1.0f / (STREAMS * width), 1.0f / width};
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    const Launch launch(ranks, groups * halves, sizeof(Shared), stream);
    const Kernel kernel = KERNELS[sums ? 3 : !mixing ? 0 : weight ? 2 : 1];
    const cudaError_t error = cudaLaunchKernelEx(&launch.config, kernel, call);
    if (error != cudaSuccess || !sums) return error;
    const int blocks = tokens + (tokens + FINISHERS - 1) / FINISHERS;
    Launch second(1, blocks, FINISHERS / 32 * sizeof(float), stream);
    second.config.numAttrs = 1;
    return cudaLaunchKernelEx(&second.config, weight ? mix_halves<true> : mix_halves<false>, call);
}
}
