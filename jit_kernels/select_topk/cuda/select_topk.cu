// The entry of the library: which kernels a call needs.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "cluster_rows.cuh"

namespace {

template <class Kernel, class... Args>
cudaError_t launch(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// A launch that is prepared while the kernel before it ends, and waits for that by itself.
template <class Kernel, class... Args>
cudaError_t launch_early(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Spread rows over about `blocks` blocks: few scores at a time, or pieces that keep loads going.
template <bool ALIGNED>
cudaError_t launch_long(Scores scores, int rows, int blocks, Row *scratch, Target target,
                        cudaStream_t stream) {
    const int each = blocks / rows > 1 ? blocks / rows : 1, step = 4 * THREADS;
    const int least = (scores.columns + each - 1) / each;
    if (least <= step) {
        const dim3 grid((scores.columns + step - 1) / step, rows);
        return launch(long_rows<1, ALIGNED>, grid, stream, scores, scratch, step, target);
    }
    const int piece = (least + 4 * step - 1) / (4 * step) * (4 * step);
    const dim3 grid((scores.columns + piece - 1) / piece, rows);
    return launch(long_rows<4, ALIGNED>, grid, stream, scores, scratch, piece, target);
}

// Let each row be held by one block.
template <bool ALIGNED>
cudaError_t launch_short(Scores scores, int rows, Target target, cudaStream_t stream) {
    if (scores.columns <= 4 * THREADS) {
        return launch_early(held_rows<4>, dim3(rows), stream, scores, target);
    }
    if (scores.columns <= 8 * THREADS) {
        return launch_early(held_rows<8>, dim3(rows), stream, scores, target);
    }
    return launch(short_rows<ALIGNED>, dim3(rows), stream, scores, target);
}

// Kernels of clusters, which hold a row each; the second and third hold long rows.
using ClusterKernel = void (*)(Scores, Target);
const ClusterKernel CLUSTER_KERNELS[] = {cluster_rows<1, false>, cluster_rows<LONGEST_RUN, true>,
                                         cluster_rows<LONGEST_RUN, false>};

// What a device holds of clusters: how many at once, 0 if it takes none; and the shared memory of a
// block, all that a multiprocessor has. So none of the launch after, which begins early, comes to lie
// beside the leader, for which all wait.
struct Clusters {
    int count, bytes;
};

struct ClusterLaunch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    ClusterLaunch(int rows, int bytes, cudaStream_t stream) {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {CLUSTER, 1, 1};
        attributes[1] = early_launch();
        config.gridDim = dim3(CLUSTER, rows);
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
};

// Let each row be held by a cluster.
cudaError_t launch_clusters(Scores scores, int rows, Target target, int bytes, bool aligned,
                            cudaStream_t stream) {
    const ClusterLaunch launch(rows, bytes, stream);
    const bool is_long = scores.columns > columns_of_runs(1);
    const ClusterKernel kernel = CLUSTER_KERNELS[!is_long ? 0 : aligned ? 1 : 2];
    return cudaLaunchKernelEx(&launch.config, kernel, scores, target);
}

// How many clusters of a kernel the current device holds at once. To ask allows the kernel more blocks
// and more shared memory than all devices with clusters give.
int count_clusters(ClusterKernel kernel, int bytes) {
    ClusterLaunch launch(1, bytes, nullptr);
    launch.config.numAttrs = 1;
    int count = 0;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config);
    }
    if (error == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

// What the current device holds; each is asked once.
Clusters clusters_here() {
    constexpr int DEVICES = 64;
    static Clusters answers[DEVICES];
    static bool asked[DEVICES];
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= DEVICES) return {0, 0};
    if (asked[device]) return answers[device];
    Clusters here = {INT_MAX, 0};
    if (cudaDeviceGetAttribute(&here.bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess ||
        here.bytes < (int)sizeof(Ballot)) {
        here.count = 0;
    }
    for (const ClusterKernel kernel : CLUSTER_KERNELS) {
        if (here.count) here.count = std::min(here.count, count_clusters(kernel, here.bytes));
    }
    asked[device] = true;
    return answers[device] = here;
}

}  // namespace

extern "C" {

long long select_topk_row_bytes() { return sizeof(Row); }

const char *select_topk_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Select in `rows` rows of a call.
//
// data, stride, visible, wide   scores; lengths are of long long where wide, else of int
// out, out_stride, out_columns  rows of long long; with a table, of int
// table, table_stride, shift    null, or the pages of a row, of 1 << shift columns each
// clusters, cluster_from        up to so many rows of more columns than that go to clusters, if
//                               these hold so many, and the device holds them in two turns
// next_settled                  the launch after reads nothing of this one or the one before until
//                               it has waited
// group, blocks, scratch        other long rows go in groups of `group` to about `blocks` blocks;
//                               `scratch` is of as many `Row`s as a group, all zero at first
//
// Returns a cudaError_t.
int select_topk(const float *data, long long stride, const void *visible, int wide, void *out,
                long long out_stride, int out_columns, const int *table, long long table_stride,
                int shift, int rows, int columns, int top_k, int clusters, int cluster_from,
                int next_settled, int group, int blocks, void *scratch, void *where) {
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    Row *const state = static_cast<Row *>(scratch);
    Scores scores = {data, stride, visible, wide != 0, columns, top_k, next_settled != 0};
    Target target = {out, out_stride, out_columns, table, table_stride, shift};
    const bool aligned = stride % 4 == 0 && reinterpret_cast<unsigned long long>(data) % 16 == 0;
    if (rows <= clusters && columns > cluster_from && columns <= columns_of_runs(LONGEST_RUN) &&
        top_k <= CLUSTER_TOP_K) {
        const Clusters here = clusters_here();
        if (rows <= 2 * here.count) {
            return launch_clusters(scores, rows, target, here.bytes, aligned, stream);
        }
    }
    if (columns <= SHORT_ROW) {
        return aligned ? launch_short<true>(scores, rows, target, stream)
                       : launch_short<false>(scores, rows, target, stream);
    }
    for (int first = 0; first < rows; first += group) {
        const int some = rows - first < group ? rows - first : group;
        scores.data = data + first * stride;
        scores.visible = static_cast<const char *>(visible) + first * (wide ? 8ll : 4ll);
        const Target to = target.of(first);
        const cudaError_t error =
            aligned ? launch_long<true>(scores, some, blocks, state, to, stream)
                    : launch_long<false>(scores, some, blocks, state, to, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}
