// Few blocks of 128 tokens. A cluster makes a state, each of its blocks of threads 32 channels, all
// their tokens on their way at once. What a token weighs depends on those before it by their
// highest gate alone: all threads weigh tokens side by side, and one warp does the sums, the only
// thing that has to wait for what is before it. Nothing waits for what says which tokens there are,
// which comes beside them: a guess is taken back if it was wrong.
#pragma once

#include "fold_found.cuh"

constexpr int FEW_SLICES = HALVES, FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS;
constexpr int PIECES = LANES / 4, SPAN = BLOCK * PIECES / FEW_THREADS;
// Places of a step that is taken so: clusters that run at once, 2 for each 16 multiprocessors.
constexpr int FEW_PARTS = 14;

// Of each channel what its tokens leave of those before them, their weights and products; of each
// warp its highest gates; of a record what meets there; states that wait to be written.
struct FewShared {
    float weighed[3][LANES][BLOCK];
    float highest[FEW_WARPS][LANES];
    float mean[GROUP], squares[HALVES];
    unsigned long long met;
    Facts<1> facts;
    float kept[ONE_LAUNCH][3][LANES];
};

__device__ inline float4 higher(float4 x, float4 y) {
    return make_float4(fmaxf(x.x, y.x), fmaxf(x.y, y.y), fmaxf(x.z, y.z), fmaxf(x.w, y.w));
}

// As `weight_of`, the same bits: a thread that weighs side by side waits for selections, of which
// these products need but one.
__device__ inline Weight weight_by_products(float before, float gate) {
    const float lower = power(-fabsf(__fsub_rn(before, gate)));
    float higher;
    asm("set.gt.f32.f32 %0, %1, %2;" : "=f"(higher) : "f"(gate), "f"(before));
    const float other = __fsub_rn(1.0f, higher);
    return {fmaxf(before, gate), fmaf(higher, lower, other), fmaf(other, lower, higher)};
}

// What the last warp asks of a step of one row, a lane a fact, in the order of `Facts`.
__device__ inline const long long *fact_of_lane(const FoldChunks &call, const Task &task) {
    const int lane = threadIdx.x % 32, saved = lane - 4;
    if (call.rows != 1) return nullptr;
    if (lane < 2 && !task.any()) return nullptr;
    if (lane == 0) return task.source(call);
    if (lane == 1) return task.target(call);
    if (lane == 2) return call.chunks.start;
    if (lane == 3) return call.window_from;
    return saved < ONE_LAUNCH && saved < call.saves.count ? call.saves.source + saved : nullptr;
}
// Whether a lane's fact is other than was guessed: which token the task ends with, or that the
// chunk begins with a block.
__device__ inline bool is_other(long long said, long long expected) {
    const int lane = threadIdx.x % 32;
    return (lane == 0 && said != expected) || (lane == 2 && said % BLOCK != 0);
}
__device__ inline void keep_fact(Facts<1> &facts, long long said) {
    const int lane = threadIdx.x % 32;
    if (lane < 4 + ONE_LAUNCH) reinterpret_cast<long long *>(&facts)[lane] = said;
}

// All tokens of a state, a thread SPAN of the phases and four channels. All threads take part in
// everything.
struct Held {
    FewShared &shared;
    float4 kv[SPAN], gate[SPAN], added[SPAN], before;
    const float *row;
    unsigned mine, count;

    __device__ static int phase() { return threadIdx.x / PIECES * SPAN; }
    __device__ static int piece() { return threadIdx.x % PIECES * 4; }
    __device__ void ask_added(const FoldChunks &call, int column) {
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            added[i] = four(call.from.ape + (phase() + i) * FOLDED_ROW + MAIN + column + piece());
        }
    }
    // Tokens that are not there change no bit: they weigh 0 and take nothing.
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            kv[i] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
            gate[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        }
    }
    // Tokens of phases [first, last] are to be asked for, the last of which is `token`.
    __device__ void aim(const FoldChunks &call, long long token, int column, int first, int last) {
        row = call.from.rows + (token - (last - phase())) * call.from.stride + column + piece();
        mine = phase() - first, count = last - first + 1;
    }
    // Ask the L2 cache for them, a line each thread.
    __device__ void bring(long long stride) const {
        static_assert(PIECES == 2 * SPAN && LANES * sizeof(float) == 128);
        const int nth = threadIdx.x % PIECES, i = nth % SPAN;
        if (mine + i < count) bring_line(row - piece() + i * stride + nth / SPAN * MAIN);
    }
    __device__ void ask(long long stride) {
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            const float *const from = row + i * stride;
            load_if(kv[i], from, mine + i, count);
            load_if(gate[i], from + MAIN, mine + i, count);
        }
    }
    // Find the highest gates before a thread's own among its warp's, and let others know all of
    // these. Returns whether a thread says so.
    __device__ bool meet(bool says = false) {
        const int lane = threadIdx.x % 32;
        float4 highest = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            gate[i] = sum(gate[i], added[i]);
            highest = higher(highest, gate[i]);
        }
#pragma unroll
        for (int step = PIECES; step < 32; step *= 2) {
            const float4 other = from_lane_before(highest, step);
            if (lane >= step) highest = higher(highest, other);
        }
        before = from_lane_before(highest, PIECES);
        if (lane < PIECES) before = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (lane >= 32 - PIECES) {
            *reinterpret_cast<float4 *>(&shared.highest[threadIdx.x / 32][piece()]) = highest;
        }
        return __syncthreads_or(says);
    }
    // Ask for what is known by now, and meet.
    __device__ void take(const FoldChunks &call, const Found &found, int column) {
        clear();
        aim(call, found.token, column, found.first, found.last);
        ask(call.from.stride);
        meet();
    }
    // Make weights, from the highest gates of what is before all tokens on.
    __device__ void weigh(float4 start) {
        const int warp = threadIdx.x / 32;
        before = higher(before, start);
#pragma unroll
        for (int i = 0; i < FEW_WARPS - 1; i++) {
            const float4 other = four(&shared.highest[i][piece()]);
            if (i < warp) before = higher(before, other);
        }
        weigh_channel(0, before.x, make_float4(kv[0].x, kv[1].x, kv[2].x, kv[3].x),
                      make_float4(gate[0].x, gate[1].x, gate[2].x, gate[3].x));
        weigh_channel(1, before.y, make_float4(kv[0].y, kv[1].y, kv[2].y, kv[3].y),
                      make_float4(gate[0].y, gate[1].y, gate[2].y, gate[3].y));
        weigh_channel(2, before.z, make_float4(kv[0].z, kv[1].z, kv[2].z, kv[3].z),
                      make_float4(gate[0].z, gate[1].z, gate[2].z, gate[3].z));
        weigh_channel(3, before.w, make_float4(kv[0].w, kv[1].w, kv[2].w, kv[3].w),
                      make_float4(gate[0].w, gate[1].w, gate[2].w, gate[3].w));
    }
    // One warp, a lane a channel.
    __device__ void add_up(Folded &state) {
        constexpr int AHEAD = 4, TURN = 8, WHICH = LANES * BLOCK / 4;
        const int lane = threadIdx.x % 32;
        Sums sums = {state.total, state.weighted};
        const float4 *from[TURN];
#pragma unroll
        for (int i = 0; i < TURN; i++) from[i] = at(0, lane, i);
        float4 held[TURN][3];
        const auto load = [&](int chunk) {
#pragma unroll
            for (int j = 0; j < 3; j++) {
                held[chunk % TURN][j] = from[chunk % TURN][chunk / TURN * TURN + j * WHICH];
            }
        };
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load(i);
#pragma unroll 1
        for (int chunk = 0; chunk < BLOCK / 4; chunk += TURN) {
#pragma unroll
            for (int i = 0; i < TURN; i++) {
                // The last turn reads what it does not need.
                load(i + AHEAD);
                const float4 decay = held[i][0], weight = held[i][1], product = held[i][2];
                sums.add(decay.x, weight.x, product.x), sums.add(decay.y, weight.y, product.y);
                sums.add(decay.z, weight.z, product.z), sums.add(decay.w, weight.w, product.w);
            }
#pragma unroll
            for (int i = 0; i < TURN; i++) from[i] += TURN;
        }
        state.total = sums.total, state.weighted = sums.weighted;
    }
    __device__ void highest_of_all(Folded &state) const {
#pragma unroll
        for (int i = 0; i < FEW_WARPS; i++) {
            state.highest = fmaxf(state.highest, shared.highest[i][threadIdx.x % 32]);
        }
    }

  private:
    __device__ static void load_if(float4 &x, const float *from, unsigned nth, unsigned count) {
        asm volatile(
            "{\n"
            ".reg .pred there;\n"
            "setp.lt.u32 there, %5, %6;\n"
            "@there ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
            "}"
            : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
            : "l"(from), "r"(nth), "r"(count)
            : "memory");
    }
    __device__ static float4 from_lane_before(float4 x, int step) {
        return make_float4(__shfl_up_sync(ALL, x.x, step), __shfl_up_sync(ALL, x.y, step),
                           __shfl_up_sync(ALL, x.z, step), __shfl_up_sync(ALL, x.w, step));
    }
    // Four tokens of a channel; both lanes for four channels each and lanes for one find them in
    // banks of their own.
    __device__ float4 *at(int which, int channel, int chunk) const {
        const int turn = channel / 4 + channel % 4 * 2;
        return reinterpret_cast<float4 *>(shared.weighed[which][channel]) +
               ((chunk & ~7) | ((chunk ^ turn) & 7));
    }
    __device__ void weigh_channel(int nth, float before, float4 kv, float4 gate) {
        // A finite number: what is not there weighs nothing, though nothing was before it.
        before = fmaxf(scaled(before), -3.4e38f);
        const Weight a = weight_by_products(before, scaled(gate.x));
        const Weight b = weight_by_products(a.highest, scaled(gate.y));
        const Weight c = weight_by_products(b.highest, scaled(gate.z));
        const Weight d = weight_by_products(c.highest, scaled(gate.w));
        const int channel = piece() + nth, chunk = phase() / 4;
        *at(0, channel, chunk) = make_float4(a.decay, b.decay, c.decay, d.decay);
        *at(1, channel, chunk) = make_float4(a.weight, b.weight, c.weight, d.weight);
        *at(2, channel, chunk) = make_float4(__fmul_rn(a.weight, kv.x), __fmul_rn(b.weight, kv.y),
                                             __fmul_rn(c.weight, kv.z), __fmul_rn(d.weight, kv.w));
    }
};

// What a state begins with: its highest gates for weights, four channels a thread, and all of it
// for sums, a lane a channel.
struct Start {
    float4 highest = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    Folded state;

    __device__ void load(const float *bank, int column) {
        highest = four(bank + column + Held::piece());
        state.begin(bank + column + threadIdx.x % 32);
    }
};

// Make all entries one after the other, then write them: nothing reads the ring any more.
__device__ inline void fold_entries(const FoldChunks &call, int column, Held &held) {
    const int lane = threadIdx.x % 32, count = call.saves.count;
    FewShared &shared = held.shared;
    const auto &facts = shared.facts;
    unsigned live = 0;
#pragma unroll 1
    for (int nth = 0; nth < count; nth++) {
        __syncthreads();
        Found found;
        found.of_row(call, Task(call, 1 + nth), facts.saved[nth], 0, facts.start, facts.from);
        if (!found.live) continue;
        Start start;
        if (found.bank >= 0) start.load(call.banks.at(found.bank), column);
        if (found.token >= 0) {
            held.take(call, found, column);
            held.weigh(start.highest);
            __syncthreads();
        }
        live |= 1u << nth;
        if (threadIdx.x >= 32) continue;
        if (found.token >= 0) held.highest_of_all(start.state), held.add_up(start.state);
        shared.kept[nth][0][lane] = start.state.highest;
        shared.kept[nth][1][lane] = start.state.total;
        shared.kept[nth][2][lane] = start.state.weighted;
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

__global__ void __launch_bounds__(FEW_THREADS, 2) fold_few(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto &shared = *reinterpret_cast<FewShared *>(memory);
    const int warp = warp_number(), lane = threadIdx.x % 32;
    const int nth = blockIdx.x / FEW_SLICES, slice = blockIdx.x % FEW_SLICES;
    const int column = slice * LANES;
    const int group = column / GROUP, group_lane = lane % GROUP_LANES, owner = slice & ~1;
    const bool one_row = call.rows == 1;
    // The first warp adds up, the second one stores, the last one learns what there is to fold.
    const bool adds = warp == 0, stores = warp == 1 && slice == owner;
    const bool learns = warp == FEW_WARPS - 1;
    const Task task(call, nth);
    const long long guess = task.likely(call);
    const int guessed = (int)(guess % BLOCK);
    Held held = {shared};
    held.ask_added(call, column);
    float4 gain = {};
    if (stores) gain = four(call.pages.weight + group * GROUP + 4 * group_lane);
    if (threadIdx.x == 0) {
        make_barrier(&shared.met);
        expect_bytes(&shared.met, (HALVES + GROUP) * sizeof(float));
        show_barriers();
    }
    __syncwarp();
    begin_in_cluster();
    const long long expected = guess < 0 ? -2 : task.entry < 0 ? guess : guess + call.saves.old;
    const long long *const fact = learns ? fact_of_lane(call, task) : nullptr;
    const bool turns = stores && task.block >= 0 && group == GROUPS - 1;
    held.clear();
    held.aim(call, guess, column, 0, guess < 0 ? -1 : guessed);
    held.bring(call.from.stride);
    await_cluster();
    take_turn();
    held.ask(call.from.stride);
    long long said = -1;
    if (fact) said = *fact;
    Turn turn = {};
    if (turns) turn.load(call.ended.turn(task.block), group_lane);
    if (learns) keep_fact(shared.facts, said);
    const bool other = held.meet(learns && is_other(said, expected));
    Start start;
    Found found;
    const auto &facts = shared.facts;
    if (other) {
        if (one_row) {
            found.of_row(call, task, facts.source[0], facts.target[0], facts.start, facts.from);
        } else {
            found.load(call, task);
        }
        if (found.bank >= 0) start.load(call.banks.at(found.bank), column);
        if (found.live && found.token >= 0) {
            held.take(call, found, column);
        }
    }
    held.weigh(start.highest);
    __syncthreads();
    if (!other) {
        found.to = facts.target[0];
        found.live = task.entry >= 0 || found.to > 0;
    }
    const bool ordered = one_row && task.entry >= 0 && facts.reads_ring(call);
    if (adds) {
        Folded state = start.state;
        const bool folds = found.bank < 0 || found.token >= 0;
        if (folds) held.add_up(state);
        if (task.block >= 0) {
            const float x = quotient(state.weighted, state.total);
            send_in_cluster(&shared.mean[column % GROUP + lane], owner, x, &shared.met);
            const float squares = squares_of_warp(x);
            if (lane < FEW_SLICES / 2) {
                send_in_cluster(&shared.squares[slice], 2 * lane, squares, &shared.met);
            }
        } else if (found.live && !ordered) {
            if (folds) held.highest_of_all(state);
            state.store(entry_at(call, task.entry, found.to) + column + lane);
        }
    } else if (stores && task.block >= 0) {
        const Place place = call.pages.place(found.to);
        await_own_phase(&shared.met, 0);
        if (found.live) store_means(call, shared.squares, shared.mean, group, place, gain, turn);
    }
    // Where the ring is read, the first cluster, which has the only block that reads it, makes all
    // entries, and what others made of them is left.
    if (nth == 0 && one_row && facts.reads_ring(call)) fold_entries(call, column, held);
}
