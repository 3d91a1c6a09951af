// The entry of the library: which kernels a call needs.
#include <cuda_runtime.h>

#include "cluster_rows.cuh"
#include "few_rows.cuh"

namespace {

template <class Kernel, class... Args>
cudaError_t launch(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// A launch that is prepared while the kernel before it ends, and waits for that by itself; with
// `cluster` blocks in a cluster, 0 for none.
template <class Kernel, class... Args>
cudaError_t launch_early(Kernel kernel, dim3 grid, int cluster, cudaStream_t stream, Args... args) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0] = early_launch();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster ? 2 : 1;
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
        return launch_early(held_rows<4>, dim3(rows), 0, stream, scores, target);
    }
    if (scores.columns <= 8 * THREADS) {
        return launch_early(held_rows<8>, dim3(rows), 0, stream, scores, target);
    }
    return launch(short_rows<ALIGNED>, dim3(rows), stream, scores, target);
}

// Let each row be held by several blocks that share no cluster.
template <bool ALIGNED>
cudaError_t launch_few(Scores scores, int rows, Row *scratch, Target target, cudaStream_t stream) {
    return launch_early(few_rows<ALIGNED>, dim3(SHARES, rows), 0, stream, scores, scratch, target);
}

// How many clusters of `cluster_rows` the current device holds at once; 0: it takes none. To ask
// allows it more blocks than all devices with clusters take.
int ask_for_clusters() {
    cudaLaunchAttribute size = {};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = CLUSTER;
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER);
    config.blockDim = dim3(THREADS);
    config.attrs = &size;
    config.numAttrs = 1;
    int clusters = 0;
    cudaError_t error =
        cudaFuncSetAttribute(cluster_rows, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveClusters(&clusters, cluster_rows, &config);
    }
    if (error == cudaSuccess) return clusters;
    cudaGetLastError();
    return 0;
}

}  // namespace

extern "C" {

// `ask_for_clusters`, which each device is asked once.
int select_topk_clusters() {
    static int answers[64];  // one more than that; 0: not asked
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return 0;
    if (!answers[device]) answers[device] = 1 + ask_for_clusters();
    return answers[device] - 1;
}

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
//                               these hold so many, and the device holds them all at once
// few                           up to so many long rows that go to no cluster go to `few_rows`
// group, blocks, scratch        more go in groups of `group` to about `blocks` blocks; `scratch` is
//                               of as many `Row`s as a group, at least `few`, all zero at first
//
// Returns a cudaError_t.
int select_topk(const float *data, long long stride, const void *visible, int wide, void *out,
                long long out_stride, int out_columns, const int *table, long long table_stride,
                int shift, int rows, int columns, int top_k, int clusters, int cluster_from,
                int few, int group, int blocks, void *scratch, void *where) {
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    Row *const state = static_cast<Row *>(scratch);
    Scores scores = {data, stride, visible, wide != 0, columns, top_k};
    Target target = {out, out_stride, out_columns, table, table_stride, shift};
    const bool aligned = stride % 4 == 0 && reinterpret_cast<unsigned long long>(data) % 16 == 0;
    if (rows <= clusters && columns > cluster_from && columns <= CLUSTER_COLUMNS &&
        top_k <= CLUSTER_TOP_K && rows <= select_topk_clusters()) {
        return launch_early(cluster_rows, dim3(CLUSTER, rows), CLUSTER, stream, scores, target);
    }
    if (columns <= SHORT_ROW) {
        return aligned ? launch_short<true>(scores, rows, target, stream)
                       : launch_short<false>(scores, rows, target, stream);
    }
    if (rows <= few && columns <= FEW_COLUMNS && top_k <= FEW_TOP_K) {
        return aligned ? launch_few<true>(scores, rows, state, target, stream)
                       : launch_few<false>(scores, rows, state, target, stream);
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
