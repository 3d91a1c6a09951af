// Attention of few decoding rows over packed records, in one launch: rows, and teams of blocks that
// take their tiles of 64 keys. A team exchanges values and weights, so that each block sums a
// quarter of the channels over all of the team's keys. Half of a block's warps bring its tile by
// chunks, the other half multiplies queries by them; then each sums one of two chunks. Code is kept
// short: inside a step instructions come from memory, and a block uses most of them once.
#include "collect.cuh"

namespace {

__global__ void __launch_bounds__(THREADS, 1) few_rows(const __grid_constant__ Call call) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    const unsigned warp = warp_number();
    const unsigned lane = threadIdx.x % 32, key = warp % 4 * 16 + lane / 4;
    const int rank = blockIdx.x % TEAM, team = blockIdx.x / TEAM;
    if (threadIdx.x == 0) {
        make_barrier(&shared.filled);
        make_barrier(&shared.summed);
    }
    arrive_at_cluster<false>();
    await_cluster();
    await_kernels();
    // Slots and queries are asked for as if the row filled all columns, before its lengths are
    // known: no block takes a tile that would not take one then.
    Row row(call, blockIdx.y);
    int slots[2] = {-1, -1};
    if (warp >= 4) {
        const Place guess(call, row, blockIdx.x);
#pragma unroll
        for (int i = 0; i < 2; i++) slots[i] = guess.slot(row.nth, key + i * 8);
    } else if (blockIdx.x < row.tiles) {
        ask_queries(call, row, shared);
    }
    const int window = row.length_of(call.window), extra = row.length_of(call.extra);
    const unsigned meetings = call.teams > 1 ? read_now(call.meetings + row.nth) : 0;
    const Sinks sinks(call, warp, lane);
    bool known = row.take(call, window, extra);
    if (team >= row.teams) {
        await_copies();
        return;
    }
    const bool together = call.together && row.teams > 1;
    Sums sums;
    for (int round = 0; round < row.each; round++) {
        const int first = (team * row.each + round) * TEAM, live = min(TEAM, row.tiles - first);
        if (live <= 0) break;
        if (round) {
            // All have read what came in the round before.
            arrive_at_cluster<true>();
            await_cluster();
        }
        const bool mine = rank < live;
        if (threadIdx.x == 0) {
            expect_bytes(&shared.filled, (live - mine) * (OWN * TILE_BYTES + WEIGHTS_BYTES));
        }
        if (mine) {
            const Place place(call, row, first + rank);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!known) slots[i] = place.slot(row.nth, key + i * 8);
                if (!place.has(key + i * 8)) slots[i] = -1;
            }
            take_tile(call, place.keys, shared, slots, rank, warp, lane);
        }
        known = false;
        if (together) {
            // Other teams may now write where queries are, which come to blocks without a tile too.
            await_copies();
            arrive_at_cluster<false>();
        }
        await_phase(&shared.filled, round % 2);
        __syncwarp();
        add_tiles(sums, shared, live, rank, warp, lane);
    }
    // Queries come to blocks without a tile as well.
    await_copies();
    // No block ends while its shared memory may still be read: what it sent has then come.
    if (!together) arrive_at_cluster<false>();
    if (row.teams == 1) {
        write_alone(call, row, sums, sinks, rank, warp, lane);
    } else {
        share_row(call, row, sums, sinks, shared, meetings, team, rank, warp, lane);
    }
    await_cluster();
}

struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    Launch(unsigned teams, unsigned rows, bool together, cudaStream_t stream) {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {together ? teams * TEAM : TEAM, 1, 1};
        // The launch is prepared while the kernel before it ends; it waits for that by itself.
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = dim3(teams * TEAM, rows);
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = sizeof(Shared);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
};

}  // namespace

extern "C" {

const char *paged_attention_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Prepare the current device for calls; return how many teams it holds at once where `together` of
// them are a cluster, 0 if none; at most 32.
int paged_attention_teams(int together) {
    int clusters = 0;
    Launch launch(together, 1, true, nullptr);
    launch.config.numAttrs = 1;
    cudaError_t error = cudaFuncSetAttribute(few_rows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             sizeof(Shared));
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(few_rows, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveClusters(&clusters, few_rows, &launch.config);
    }
    // An error is told by the 0, and is not left for others to find.
    cudaGetLastError();
    if (error != cudaSuccess) return 0;
    return clusters * together < MOST_TEAMS ? clusters * together : MOST_TEAMS;
}

// Bytes of scratch memory for so many teams; they are zero before the first call.
long long paged_attention_scratch_bytes(int teams) {
    return teams * (TEAM * QUADS * (long long)sizeof(float4) + HEADS * sizeof(float) +
                    sizeof(unsigned));
}

// Attend `rows` rows by `teams` teams each: where there are several, no more in all than the device
// holds, or `together` in a cluster that has a block for each tile. `scratch` is for `most` teams.
// Queries, pages and results begin at multiples of 16 bytes, and so does each row of queries.
// Returns a cudaError_t.
int paged_attention_call(const void *q, long long q_stride, const void *window_pages,
                         const int *window_slots, long long window_stride,
                         const int *window_lengths, int window_columns, int window_rows,
                         long long window_bytes, const void *extra_pages, const int *extra_slots,
                         long long extra_stride, const int *extra_lengths, int extra_columns,
                         int extra_rows, long long extra_bytes, const float *sink, void *out,
                         float scale, int rows, int heads, int teams, int together,
                         void *scratch, int most, void *where) {
    const int tiles = (window_columns + KEYS - 1) / KEYS + (extra_columns + KEYS - 1) / KEYS;
    if (together && (teams > MOST_TOGETHER || tiles > teams * TEAM)) {
        return cudaErrorInvalidConfiguration;
    }
    if (!together && teams > 1 && (long long)rows * teams > most) {
        return cudaErrorCooperativeLaunchTooLarge;
    }
    float4 *const partials = static_cast<float4 *>(scratch);
    float *const sums = reinterpret_cast<float *>(partials + (long long)most * TEAM * QUADS);
    const Call call = {keys_of(window_pages, window_slots, window_lengths, window_stride,
                               window_bytes, window_columns, window_rows),
                       keys_of(extra_pages, extra_slots, extra_lengths, extra_stride, extra_bytes,
                               extra_columns, extra_rows),
                       static_cast<const __nv_bfloat16 *>(q),
                       sink,
                       static_cast<__nv_bfloat16 *>(out),
                       partials,
                       sums,
                       reinterpret_cast<int *>(sums + most * HEADS),
                       q_stride,
                       scale * LOG2_E,
                       heads,
                       teams,
                       together != 0};
    const Launch launch(teams, rows, together, static_cast<cudaStream_t>(where));
    return cudaLaunchKernelEx(&launch.config, few_rows, call);
}
}
