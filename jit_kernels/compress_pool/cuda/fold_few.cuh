// Few blocks of 128 tokens. A cluster has a part, each of its blocks of threads 32 channels, all their
// tokens on their way at once. What a token weighs depends on those before it by their highest gate
// alone: warps weigh tokens side by side, and one of them does the sums, the only thing that has to
// wait for what is before it.
#pragma once

#include "fold_stream.cuh"

constexpr int FEW_SLICES = HALVES, FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS;
constexpr int WARP_TOKENS = BLOCK / FEW_WARPS;
// Parts of a step that is taken so: clusters that run at once, 3 for each 16 multiprocessors.
constexpr int FEW_PARTS = 21;

// Of each token kv, gate and what is added to that, then decay, and weight and product of each lane;
// of each warp its highest gates; of a record what meets there; states that wait to be written.
struct FewShared {
    float staged[BLOCK][3][LANES];
    float highest[FEW_WARPS][LANES];
    float mean[GROUP], squares[HALVES];
    float kept[PARTS - 1][3][LANES];
};

// All tokens of a part, on their way to a block of threads and folded there; a warp has WARP_TOKENS
// of the phases. All threads take part in everything.
struct Held {
    FewShared &shared;
    int first, last;

    __device__ int phase() const { return threadIdx.x / 32 * WARP_TOKENS; }
    // Ask for as many tokens' pieces as a warp has lanes for, PIECES each.
    template <class Ask>
    __device__ void each_piece(Ask ask) {
        constexpr int PIECES = LANES / 4, TOKENS = 32 / PIECES;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WARP_TOKENS; i += TOKENS) {
            ask(phase() + i + lane / PIECES, lane % PIECES * 4);
        }
    }
    // Ask for what is added to gates, of all phases.
    __device__ void ask_added(const FoldChunks &call, int column) {
        each_piece([&](int phase, int piece) {
            copy_ahead(&shared.staged[phase][2][piece],
                       call.from.ape + phase * FOLDED_ROW + MAIN + column + piece);
        });
        close_group();
    }
    // Ask for the tokens of phases [from, to]; `token` is that of the last one.
    __device__ void begin(const FoldChunks &call, long long token, int column, int from, int to) {
        first = from, last = to;
        each_piece([&](int phase, int piece) {
            if (phase < first || phase > last) return;
            const float *const row =
                call.from.rows + (token - (last - phase)) * call.from.stride + column + piece;
            copy_ahead(&shared.staged[phase][0][piece], row);
            copy_ahead(&shared.staged[phase][1][piece], row + MAIN);
        });
        close_group();
    }
    // Wait for what was asked for.
    __device__ void drop() const {
        await_groups<0>();
        __syncwarp();
    }
    // Fold all of them. Only the first warp has the state's sums afterwards.
    __device__ void fold(Folded &state) {
        drop();
        weigh(state);
        __syncthreads();
        if (threadIdx.x < 32) add_up(state);
    }

  private:
    __device__ bool has(int phase) const { return first <= phase && phase <= last; }
    // Make weights of a warp's gates, and the state's highest gate of all.
    __device__ void weigh(Folded &state) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float kv[WARP_TOKENS], gate[WARP_TOKENS], highest = -INFINITY;
#pragma unroll
        for (int i = 0; i < WARP_TOKENS; i++) {
            const auto &token = shared.staged[phase() + i];
            const float sum = __fadd_rn(token[1][lane], token[2][lane]);
            kv[i] = token[0][lane], gate[i] = has(phase() + i) ? sum : -INFINITY;
            highest = fmaxf(highest, gate[i]);
        }
        shared.highest[warp][lane] = highest;
        __syncthreads();
        float before = state.highest;
#pragma unroll
        for (int i = 0; i < FEW_WARPS; i++) {
            const float other = shared.highest[i][lane];
            if (i < warp) before = fmaxf(before, other);
            state.highest = fmaxf(state.highest, other);
        }
        before = scaled(before);
#pragma unroll
        for (int i = 0; i < WARP_TOKENS; i++) {
            const Weight one = weight_of(before, scaled(gate[i]));
            before = one.highest;
            put(phase() + i, one, __fmul_rn(one.weight, kv[i]));
        }
    }
    // Leave a token for the sums; one that is not there changes no bit: it weighs 0, takes nothing.
    __device__ void put(int phase, const Weight &one, float product) {
        const int lane = threadIdx.x % 32;
        const bool there = has(phase);
        shared.staged[phase][0][lane] = there ? one.decay : 1.0f;
        reinterpret_cast<float2 *>(shared.staged[phase][1])[lane] =
            there ? make_float2(one.weight, product) : make_float2(0.0f, -0.0f);
    }
    __device__ void add_up(Folded &state) {
        constexpr int STEP = 16;
        const int lane = threadIdx.x % 32;
        Sums sums = {state.total, state.weighted};
        float decay[STEP];
        float2 more[STEP];
        const auto load = [&](int phase) {
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                const auto &token = shared.staged[phase + i];
                decay[i] = token[0][lane];
                more[i] = reinterpret_cast<const float2 *>(token[1])[lane];
            }
        };
        load(0);
#pragma unroll 1
        for (int phase = 0; phase < BLOCK; phase += STEP) {
            float now[STEP];
            float2 here[STEP];
#pragma unroll
            for (int i = 0; i < STEP; i++) now[i] = decay[i], here[i] = more[i];
            // The last turn reads its own once more.
            load(min(phase + STEP, BLOCK - STEP));
#pragma unroll
            for (int i = 0; i < STEP; i++) sums.add(now[i], here[i].x, here[i].y);
        }
        state.total = sums.total, state.weighted = sums.weighted;
    }
};

// Whether a step of one row reads its ring, as far as that is known from the row and its entries.
// Loaded before it is asked for.
struct RingUse {
    long long start = 0, from = 0, old = 0, source[PARTS - 1];

    __device__ explicit RingUse(const FoldChunks &call) {
        old = call.saves.old;
#pragma unroll
        for (int i = 0; i < PARTS - 1; i++) source[i] = -1;
        if (!takes_one_launch(call)) return;
        start = call.chunks.start[0], from = call.window_from[0];
#pragma unroll
        for (int i = 0; i < PARTS - 1; i++) {
            if (i < call.saves.count) source[i] = call.saves.source[i];
        }
    }
    __device__ bool reads() const {
        bool any = start % BLOCK != 0 && start > from;
#pragma unroll
        for (int i = 0; i < PARTS - 1; i++) any |= source[i] >= 0 && source[i] < old;
        return any;
    }
};

// Make all entries one after the other, then write them: nothing reads the ring any more.
__device__ inline void fold_entries(const FoldChunks &call, int column, FewShared &shared) {
    const int lane = threadIdx.x % 32, count = call.saves.count;
    Held held = {shared};
    unsigned live = 0;
#pragma unroll 1
    for (int nth = 0; nth < count; nth++) {
        __syncthreads();
        held.ask_added(call, column);
        Task entry(call, 1 + nth);
        Folded state;
        entry.make(call, column, held, state);
        held.drop();
        live |= (unsigned)entry.live << nth;
        if (threadIdx.x >= 32) continue;
        shared.kept[nth][0][lane] = state.highest;
        shared.kept[nth][1][lane] = state.total;
        shared.kept[nth][2][lane] = state.weighted;
    }
    if (threadIdx.x >= 32) return;
#pragma unroll 1
    for (int nth = 0; nth < count; nth++) {
        if (!(live >> nth & 1)) continue;
        float *const to = call.banks.at(call.saves.target[nth]) + column + lane;
#pragma unroll
        for (int i = 0; i < 3; i++) to[i * MAIN] = shared.kept[nth][i][lane];
    }
}

__global__ void __launch_bounds__(FEW_THREADS, 3) fold_few(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto &shared = *reinterpret_cast<FewShared *>(memory);
    // Others of the cluster must have begun when their memory is written.
    begin_in_cluster();
    const int lane = threadIdx.x % 32, nth = blockIdx.x / FEW_SLICES;
    const int column = blockIdx.x % FEW_SLICES * LANES;
    const int group = column / GROUP, group_lane = lane % GROUP_LANES;
    const bool leads = threadIdx.x < 32;
    Held held = {shared};
    held.ask_added(call, column);
    const float4 gain = four(call.pages.weight + group * GROUP + 4 * group_lane);
    take_turn();
    const RingUse use(call);
    Task task(call, nth);
    Turn turn = {};
    if (task.block >= 0 && group == GROUPS - 1) turn.load(call.ended.turn(task.block), group_lane);
    Folded state;
    task.make(call, column, held, state);
    held.drop();
    // Where the ring is read, the first cluster, which has the only block that reads it, makes all
    // entries, and what others made of them is left.
    const bool ordered = use.reads(), record = task.live && task.block >= 0;
    const bool stores = record && leads && column % GROUP == 0;
    Place place = {};
    if (stores) place = call.pages.place(task.to);
    await_cluster();
    if (record && leads) {
        const float x = quotient(state.weighted, state.total);
        float *const mean = &shared.mean[column % GROUP + lane];
        const int owner = group * (GROUP / LANES);
        store_in_cluster((unsigned)__cvta_generic_to_shared(mean), owner, x);
        tell_squares<FEW_SLICES>(&shared.squares[column / LANES], x);
    }
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
    if (stores) store_means(call, shared.squares, shared.mean, group, place, gain, turn);
    if (ordered && nth == 0) return fold_entries(call, column, shared);
    if (ordered || !leads || record || !task.live) return;
    float *const to = takes_one_launch(call) ? call.banks.at(task.to)
                                             : call.saves.fetched + task.entry * (3ll * MAIN);
    state.store(to + column + lane);
}
