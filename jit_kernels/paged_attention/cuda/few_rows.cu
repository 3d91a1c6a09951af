// Attention of few decoding rows over packed records: rows, and teams of blocks that take their tiles
// of 64 keys. A team exchanges values and weights, so that each block sums a quarter of the channels
// over all of the team's keys. What several teams of a row leave is added up by a second launch.
#include "add_up.cuh"

namespace {

__global__ void __launch_bounds__(THREADS, 1) few_rows(const __grid_constant__ Call call) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    const int warp = warp_number(), lane = threadIdx.x % 32, key = warp * 8 + lane / 4;
    const int rank = blockIdx.x % TEAM, team = blockIdx.x / TEAM;
    if (threadIdx.x == 0) {
        make_barrier(&shared.filled);
        show_barriers();
    }
    arrive_at_cluster<false>();
    await_launch_before();
    // Slots are asked for as if the row filled all columns, before its lengths are known.
    Row row(call, blockIdx.y);
    int slot = Place(call, row, blockIdx.x, key).slot(row.nth);
    const int window = row.length_of(call.window), extra = row.length_of(call.extra);
    const Sinks sinks(call, warp, lane);
    await_cluster();
    const bool guessed = row.take(call, window, extra);
    if (team >= row.teams) return;
    const int tile = team * row.each * TEAM + rank;
    const Place place(call, row, tile, key);
    if (!guessed) slot = place.slot(row.nth);
    if (place.column >= place.count) slot = -1;
    Record record(place.keys, slot, lane % 4);
    // What adds up the teams begins when they have ended: while they hold most multiprocessors its
    // blocks would crowd on the others.
    let_next_begin_if(call.teams == 1);
    ask_queries(call, row, shared, tile < row.tiles ? call.heads : 0);

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
        if (mine) take_tile(call, shared, record, slot >= 0, rank, warp, lane);
        if (round + 1 < row.each) {
            const Place next(call, row, first + TEAM + rank, key);
            slot = next.slot(row.nth);
            record = Record(next.keys, slot, lane % 4);
        }
        await_phase(&shared.filled, round % 2);
        __syncwarp();
        switch (live) {
            case 1: add_tiles<1>(sums, shared, rank, warp, lane); break;
            case 2: add_tiles<2>(sums, shared, rank, warp, lane); break;
            case 3: add_tiles<3>(sums, shared, rank, warp, lane); break;
            default: add_tiles<4>(sums, shared, rank, warp, lane);
        }
    }
    // Queries come to blocks without a tile as well.
    await_copies();
    // No block ends while its shared memory may still be read: what it sent has then come.
    arrive_at_cluster<false>();
    if (call.teams == 1) {
        write_alone(call, row, sums, sinks, rank, warp, lane);
    } else {
        leave(call, row, sums, team, rank, warp, lane);
        let_next_begin();
    }
    await_cluster();
}

struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    Launch(int teams, int rows, cudaStream_t stream) {
        attributes[0] = early_launch();
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim = {TEAM, 1, 1};
        config.gridDim = dim3(teams * TEAM, rows);
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = sizeof(Shared);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
};

// Launch what adds up the teams of rows.
cudaError_t launch_after(const Launch &launch, const Call &call) {
    cudaLaunchConfig_t config = launch.config;
    config.numAttrs = 1;
    config.gridDim = dim3(UNITS, config.gridDim.y);
    config.blockDim = dim3(UNIT_THREADS);
    config.dynamicSmemBytes = call.teams * UNIT_THREADS * sizeof(float4);
    return cudaLaunchKernelEx(&config, add_up, call);
}

// Percent of shared memory that the blocks of all rows at once need of a multiprocessor, about.
constexpr int LITTLE = 28;

// A wish: where it is not heard, products beside are slower.
void ask_for_little() {
    cudaFuncSetAttribute(add_up, cudaFuncAttributePreferredSharedMemoryCarveout, LITTLE);
}

}  // namespace

extern "C" {

const char *paged_attention_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Prepare the current device for calls; return how many teams it holds at once, 0 if none.
int paged_attention_teams() {
    int teams = 0;
    Launch launch(1, 1, nullptr);
    launch.config.attrs = launch.attributes + 1;
    launch.config.numAttrs = 1;
    cudaError_t error = cudaFuncSetAttribute(few_rows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             sizeof(Shared));
    ask_for_little();
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveClusters(&teams, few_rows, &launch.config);
    }
    // An error is told by the 0, and is not left for others to find.
    cudaGetLastError();
    if (error != cudaSuccess) return 0;
    return teams < MOST_TEAMS ? teams : MOST_TEAMS;
}

// Numbers of float32 that a team of a row leaves: its means, and after those of all teams of all rows
// its sums.
long long paged_attention_team_numbers() { return TEAM * QUADS * 4ll + HEADS; }

// Attend `rows` rows by `teams` teams each, after `paged_attention_teams`. If there are several they
// leave in `parts` what they find. Queries, pages and results begin at multiples of 16 bytes, and so
// does each row of queries. Returns a cudaError_t.
int paged_attention_call(const void *q, long long q_stride, const void *window_pages,
                         const int *window_slots, long long window_stride,
                         const int *window_lengths, int window_columns, int window_rows,
                         long long window_bytes, const void *extra_pages, const int *extra_slots,
                         long long extra_stride, const int *extra_lengths, int extra_columns,
                         int extra_rows, long long extra_bytes, const float *sink, void *out,
                         float scale, int rows, int heads, int teams, float *parts, void *where) {
    const Call call = {{static_cast<const unsigned char *>(window_pages), window_slots,
                        window_lengths, window_stride, window_bytes, window_columns, window_rows},
                       {static_cast<const unsigned char *>(extra_pages), extra_slots, extra_lengths,
                        extra_stride, extra_bytes, extra_columns, extra_rows},
                       static_cast<const __nv_bfloat16 *>(q),
                       sink,
                       static_cast<__nv_bfloat16 *>(out),
                       reinterpret_cast<float4 *>(parts),
                       parts + (long long)rows * teams * TEAM * QUADS * 4,
                       q_stride,
                       scale * LOG2_E,
                       heads,
                       teams};
    const Launch launch(teams, rows, static_cast<cudaStream_t>(where));
    const cudaError_t error = cudaLaunchKernelEx(&launch.config, few_rows, call);
    if (error != cudaSuccess || teams == 1) return error;
    return launch_after(launch, call);
}
}
