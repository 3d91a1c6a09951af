// Blocks of 128 tokens. A cluster of two makes one state after the other, each of its blocks
// of threads half of the channels, and keeps what is added to the gates of those, which would else
// come from the L2 cache with each state. Which tokens a cluster's first state has is guessed; when
// they are there, so is what says which they are and those of the next ones.
#pragma once

#include "fold_found.cuh"

constexpr int WIDE_SLICES = 2, WIDE = MAIN / WIDE_SLICES, WIDE_WARPS = WIDE / LANES;
constexpr int WIDE_STAGE = WIDE_WARPS, WIDE_STAGES = 6, WIDE_AHEAD = WIDE_STAGES - 1;
// Clusters that run at once, and states that one can list, a lane each.
constexpr int WIDE_CLUSTERS = 66, WIDE_LIST = 32;

// What a step of one row says of a cluster's tasks and of itself, brought beside tokens.
struct Facts {
    long long source[WIDE_LIST], slot[WIDE_LIST], start, from;
};

struct WideShared {
    float ape[BLOCK][WIDE];
    float staged[WIDE_STAGES][WIDE_STAGE][2][WIDE];
    // Where a record meets: means of the block's own channels, squares of all, LANES by LANES.
    float mean[WIDE], squares[2][HALVES];
    unsigned long long met[2];
    Facts facts;
};

// Say that this block has begun.
__device__ inline void begin_in_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void await_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline void copy_fact_ahead(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

// A warp asks what a step of one row says, a lane for a task.
__device__ inline void ask_facts(const FoldChunks &call, const Task &task, Facts &facts) {
    const int lane = threadIdx.x % 32;
    if (task.any()) copy_fact_ahead(&facts.source[lane], task.source(call));
    if (task.block >= 0) copy_fact_ahead(&facts.slot[lane], call.ended.slots + task.block);
    if (lane == 0) copy_fact_ahead(&facts.start, call.chunks.start);
    if (lane == 1) copy_fact_ahead(&facts.from, call.window_from);
}

// Tokens on their way, stage after stage, a warp asking for one of each.
struct WideStream {
    WideShared &shared;
    const float *rows, *ape, *row;
    long long stride;
    int phase = 0, last = -1, asked = 0;
    bool with_ape = false;

    __device__ WideStream(const FoldChunks &call, WideShared &shared, int column)
        : shared(shared), rows(call.from.rows + column), ape(call.from.ape + MAIN + column),
          row(rows), stride(call.from.stride) {}
    // Tokens of phases [from, to] are to be asked for, the last of which is `token`.
    __device__ void begin(long long token, int from, int to) {
        phase = from, last = to;
        row = rows + (token - (to - from) + threadIdx.x / 32) * stride;
    }
    // Ask the L2 cache for the first of them, a line each thread.
    __device__ void bring() const {
        constexpr int LINES = 2 * WIDE * sizeof(float) / 128;
        const int token = threadIdx.x / LINES, line = threadIdx.x % LINES * 32;
        const float *const from = row + (token - (int)threadIdx.x / 32) * stride;
        if (phase + token <= last) bring_line(from + line / WIDE * MAIN + line % WIDE);
    }
    __device__ void ask() {
        const int warp = threadIdx.x / 32;
        if (phase + warp <= last) {
            auto &to = shared.staged[asked % WIDE_STAGES][warp];
            line(to[0], row), line(to[1], row + MAIN);
        }
        if (with_ape && phase < BLOCK) ask_added(phase + warp);
        row += WIDE_STAGE * stride, phase += WIDE_STAGE, asked++;
    }
    __device__ void ask_all_added() {
#pragma unroll 1
        for (int i = threadIdx.x / 32; i < BLOCK; i += WIDE_WARPS) ask_added(i);
    }

  private:
    __device__ void ask_added(int phase) { line(shared.ape[phase], ape + phase * FOLDED_ROW); }
    __device__ static void line(float *to, const float *from) {
        const int at = 4 * (threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < WIDE; i += 128) copy_ahead(to + i + at, from + i + at);
    }
};

__device__ inline long long told(long long x, int lane) { return __shfl_sync(ALL, x, lane); }
__device__ inline int told(int x, int lane) { return __shfl_sync(ALL, x, lane); }

__global__ void __launch_bounds__(WIDE, 1) fold_wide(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto &shared = *reinterpret_cast<WideShared *>(memory);
    constexpr unsigned RECORD = (HALVES + WIDE) * sizeof(float);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % WIDE_SLICES;
    const int cluster = blockIdx.x / WIDE_SLICES, others = gridDim.x / WIDE_SLICES - 1;
    const int at = warp * LANES + lane, column = rank * WIDE + warp * LANES;
    const int group = column / GROUP, group_lane = lane % GROUP_LANES;
    // The first cluster makes the first block's state alone.
    const auto place_of = [&](int nth) -> long long {
        return cluster ? cluster + (long long)nth * others : nth ? -1 : 0;
    };
    WideStream stream(call, shared, rank * WIDE);
    const Task mine(call, place_of(lane));
    const long long guess = Task(call, place_of(0)).likely(call);
    const int guessed = (int)(guess % BLOCK);
    // A guess brings what is added to all phases, too.
    bool guessing = guess >= 0 && guessed >= BLOCK - WIDE_STAGE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            make_barrier(&shared.met[i]);
            expect_bytes(&shared.met[i], RECORD);
        }
        show_barriers();
    }
    __syncwarp();
    // Others of the cluster must have made their barriers when numbers are sent to them.
    begin_in_cluster();
    if (guessing) stream.begin(guess, 0, guessed), stream.with_ape = true, stream.bring();
    take_turn();
#pragma unroll 1
    for (int i = 0; i < WIDE_AHEAD; i++) {
        stream.ask();
        if (i == 0 && warp == 0 && call.rows == 1) ask_facts(call, mine, shared.facts);
        close_group();
    }
    Found found;
    // Tasks to be done, and those of them whose tokens are not yet asked for, a bit each.
    unsigned todo = 1, left = 0;
    bool known = false;
    int taken = 0, records = 0;
    const float4 gain = four(call.pages.weight + group * GROUP + 4 * group_lane);
    const auto learn = [&] {
        known = true;
        if (call.rows == 1) {
            const auto &facts = shared.facts;
            found.of_row(call, mine, facts.source[lane], facts.slot[lane], facts.start,
                         facts.from);
        } else {
            found.load(call, mine);
        }
        __syncwarp();
        todo = __ballot_sync(ALL, found.live);
        left = todo & __ballot_sync(ALL, found.token >= 0);
    };
    const auto next = [&] {
        if (stream.phase <= stream.last || !left) return;
        const int nth = __ffs(left) - 1;
        left &= left - 1;
        stream.with_ape = false;
        stream.begin(told(found.token, nth), told(found.first, nth), told(found.last, nth));
    };
    // Without a guess, or after a wrong one, everything is asked for anew.
    const auto anew = [&] {
        await_copies();
        __syncthreads();
        if (!known) learn();
        guessing = false;
        stream.with_ape = false, stream.last = -1, taken = stream.asked;
        stream.ask_all_added();
#pragma unroll 1
        for (int i = 0; i < WIDE_AHEAD; i++) next(), stream.ask(), close_group();
    };
    if (!guessing) anew();
    await_cluster();
#pragma unroll 1
    while (todo) {
        const int nth = __ffs(todo) - 1;
        const Task task(call, place_of(nth));
        const bool stores = task.block >= 0 && warp % 2 == 0;
        int first = 0, last = guessed;
        Folded state;
        Turn turn = {};
        if (stores && group == GROUPS - 1) turn.load(call.ended.turn(task.block), group_lane);
        if (known) {
            const long long bank = told(found.bank, nth);
            first = told(found.first, nth), last = told(found.last, nth);
            if (bank >= 0) state.begin(call.banks.at(bank) + column + lane);
        }
#pragma unroll 1
        for (int done = first; done <= last; done += WIDE_STAGE) {
            await_groups<WIDE_AHEAD - 1>();
            __syncthreads();
            if (!known) {
                learn();
                left &= ~1u;
                const bool right = (todo & 1) && told(found.token, 0) == guess &&
                                   told(found.first, 0) == 0 && told(found.last, 0) == guessed;
                if (!right) break;
            }
            float kv[WIDE_STAGE], gate[WIDE_STAGE];
            const auto &staged = shared.staged[taken % WIDE_STAGES];
#pragma unroll
            for (int i = 0; i < WIDE_STAGE; i++) {
                kv[i] = staged[i][0][at];
                gate[i] = __fadd_rn(staged[i][1][at], shared.ape[(done + i) % BLOCK][at]);
            }
            taken++;
            // The place of the stage before is free: all warps have read it.
            next(), stream.ask(), close_group();
            // Tokens past the last one change no bit: they weigh 0 and take nothing.
            if (done + WIDE_STAGE - 1 > last) {
#pragma unroll
                for (int i = 0; i < WIDE_STAGE; i++) {
                    if (done + i > last) kv[i] = -0.0f, gate[i] = -INFINITY;
                }
            }
#pragma unroll
            for (int i = 0; i < WIDE_STAGE; i++) state.add(kv[i], gate[i]);
        }
        if (guessing && !taken) {
            left = todo & __ballot_sync(ALL, found.token >= 0);
            anew();
            continue;
        }
        const long long slot = told(found.slot, nth);
        todo &= todo - 1;
        if (task.block >= 0) {
            const int turned = records % 2;
            const float x = quotient(state.weighted, state.total), squares = squares_of_warp(x);
            unsigned long long *const met = &shared.met[turned];
            send_in_cluster(&shared.mean[at], rank, x, met);
            float *const place_of_squares = &shared.squares[turned][column / LANES];
            if (lane < WIDE_SLICES) send_in_cluster(place_of_squares, lane, squares, met);
            if (stores) {
                const Place place = call.pages.place(slot);
                await_own_phase(met, records / 2 % 2);
                if (threadIdx.x == 0) expect_bytes(met, RECORD);
                store_means(call, shared.squares[turned], shared.mean + warp * LANES, group, place,
                            gain, turn);
            }
            records++;
        } else {
            state.store(call.saves.fetched + task.entry * (3ll * MAIN) + column + lane);
        }
    }
    await_copies();
}
