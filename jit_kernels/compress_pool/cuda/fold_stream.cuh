// Blocks of 128 tokens, folded token after token while those to come are on their way. A warp has
// 32 channels of a part and asks for all it takes: rows, and what is added to their gates, into its
// own piece of shared memory, so that nothing waits but for memory. A cluster has PARTS parts, each
// of its blocks of threads a slice of their channels: the narrower, the more multiprocessors share
// them. The first cluster has all parts that read or write the ring of a step of one row.
#pragma once

#include "cluster.cuh"
#include "fold.cuh"

constexpr int PARTS = 4, LANES = 32, HALVES = MAIN / LANES;

struct FoldChunks {
    Rows from;
    Banks banks;
    Chunks chunks;
    const long long *window_from;
    Ended ended;
    Saves saves;
    Pages pages;
    float eps;
    int blocks, tokens, rows;
};

// A step of one row, and of so few entries, needs no second launch: in each of its slices all that
// reads the ring has one block of threads with all that writes it, at least if the ring is read.
__host__ __device__ inline bool takes_one_launch(const FoldChunks &call) {
    return call.rows == 1 && call.saves.count < PARTS;
}

// Places of parts: of the first block, entries, and the other blocks.
__host__ __device__ inline long long places(const FoldChunks &call) {
    return (call.blocks > 1 ? (long long)call.blocks : 1) + call.saves.count;
}

// What SLICES blocks of threads of a cluster have each; 96 KiB are on their way to one.
template <int SLICES>
struct Shape {
    static constexpr int SLICE = MAIN / SLICES, WARPS = SLICE / LANES, THREADS = PARTS * SLICE;
    static constexpr int STAGE = SLICES, STAGES = 4, AHEAD = STAGES * STAGE;
};

// Of each token kv, gate, and what is added to that; of each record what meets there, means of the
// block's own groups and squares of all channels, LANES by LANES.
template <int SLICES>
struct StreamShared {
    float staged[PARTS][Shape<SLICES>::WARPS][Shape<SLICES>::AHEAD][3][LANES];
    float mean[PARTS][Shape<SLICES>::SLICE], squares[PARTS][HALVES];
};

// One channel of a state; `scaled_highest` is what its name says.
struct Folded {
    float highest = -INFINITY, scaled_highest = -INFINITY, total = 0.0f, weighted = 0.0f;

    __device__ void begin(const float *bank) {
        highest = bank[0], total = bank[MAIN], weighted = bank[2 * MAIN];
        scaled_highest = scaled(highest);
    }
    __device__ void add(float kv, float gate) {
        const Weight one = weight_of(scaled_highest, scaled(gate));
        Sums sums = {total, weighted};
        sums.add(one.decay, one.weight, __fmul_rn(one.weight, kv));
        highest = fmaxf(highest, gate), scaled_highest = one.highest;
        total = sums.total, weighted = sums.weighted;
    }
    __device__ void store(float *to) const {
        to[0] = highest, to[MAIN] = total, to[2 * MAIN] = weighted;
    }
};

// Tokens of phases [first, last] on their way to a warp, STAGES times STAGE of them at once.
template <int STAGE, int STAGES>
struct Stream {
    static constexpr int AHEAD = STAGE * STAGES, PIECES = LANES / 4, TOKENS = 32 / PIECES;
    static constexpr unsigned PART = LANES * sizeof(float), TOKEN = 3 * PART;
    float (*staged)[3][LANES];
    long long stride;
    // Of a lane's next token to be asked for: row, and what is added to its gate. Of the first one
    // of all lanes: phase and place.
    const float *row, *ape;
    int first, last, phase, place;

    // `token` is that of the phase `to`.
    __device__ void begin(const FoldChunks &call, long long token, int column, int from, int to) {
        const int lane = threadIdx.x % 32, nth = lane / PIECES, at = column + lane % PIECES * 4;
        stride = call.from.stride;
        row = call.from.rows + (token - (to - from) + nth) * stride + at;
        ape = call.from.ape + (from + nth) * FOLDED_ROW + MAIN + at;
        first = phase = from, last = to, place = 0;
#pragma unroll 1
        for (int stage = 0; stage < STAGES; stage++) ask();
    }
    __device__ void ask() {
        const int lane = threadIdx.x % 32, nth = lane / PIECES;
        unsigned at = (unsigned)__cvta_generic_to_shared(&staged[place + nth][0][0]);
        at += lane % PIECES * 16;
#pragma unroll
        for (int i = 0; i < STAGE; i += TOKENS) {
            if (phase + i + nth <= last) {
                copy_ahead(at + i * TOKEN, row);
                copy_ahead(at + i * TOKEN + PART, row + MAIN);
                copy_ahead_of_all(at + i * TOKEN + 2 * PART, ape);
            }
            row += TOKENS * stride, ape += TOKENS * FOLDED_ROW;
        }
        close_group();
        phase += STAGE;
        place = place + STAGE == AHEAD ? 0 : place + STAGE;
    }
    // Leave what was asked for.
    __device__ void drop() const {
        await_groups<0>();
        __syncwarp();
    }
    // Fold all of them. The place of the oldest is that of the next ones.
    __device__ void fold(Folded &state) {
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int done = first; done <= last; done += STAGE) {
            float kv[STAGE], gate[STAGE];
            await_groups<STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < STAGE; i++) {
                const auto &token = staged[place + i];
                kv[i] = token[0][lane], gate[i] = __fadd_rn(token[1][lane], token[2][lane]);
            }
            __syncwarp();
            ask();
            // Tokens past the last one change no bit: they weigh 0 and take nothing.
            if (done + STAGE - 1 > last) {
#pragma unroll
                for (int i = 0; i < STAGE; i++) {
                    if (done + i > last) kv[i] = -0.0f, gate[i] = -INFINITY;
                }
            }
#pragma unroll
            for (int i = 0; i < STAGE; i++) state.add(kv[i], gate[i]);
        }
    }
};

// Tokens of phases [first, last] of a block that are to be folded, from a bank on, or from nothing.
struct Part {
    long long bank;
    int first, last;
};

// What there is to fold up to a position, in a chunk that begins so.
__device__ inline Part part_from(const FoldChunks &call, long long position, const Begin &begin) {
    const int last = position % BLOCK;
    const long long fresh = position - begin.start;
    Part part = {-1, fresh < last ? last - (int)fresh : 0, last};
    if (part.first > 0 && begin.start > begin.from) {
        part.bank = call.banks.bank(begin.ring, begin.start - 1);
    }
    return part;
}

// What a warp makes: the state at the end of a block, or an entry's; -1 is none. It goes to a slot
// or to a bank, unless it turns out not to be wanted.
struct Task {
    int block = -1, entry = -1;
    long long to = 0;
    bool live = false;

    __device__ Task(const FoldChunks &call, long long place) {
        const int saved = call.saves.count;
        if (0 < place && place <= saved) {
            entry = (int)place - 1;
        } else if (place >= 0 && place - (place ? saved : 0) < call.blocks) {
            block = (int)place - (place ? saved : 0);
        }
    }
    __device__ bool any() const { return block >= 0 || entry >= 0; }
    // Where it is said with which token it ends, and where it goes.
    __device__ const long long *source(const FoldChunks &call) const {
        return entry < 0 ? call.chunks.last + block : call.saves.source + entry;
    }
    __device__ const long long *target(const FoldChunks &call) const {
        return entry < 0 ? call.ended.slots + block : call.saves.target + entry;
    }
    // The token it ends with, if there is one row that begins with a block and is saved at its end;
    // else -1.
    __device__ long long likely(const FoldChunks &call) const {
        const long long token = entry < 0 ? (long long)block * BLOCK + BLOCK - 1
                                          : (long long)call.tokens - call.saves.count + entry;
        return call.rows == 1 && 0 <= token && token < call.tokens ? token : -1;
    }
    // Fold it, or read it from its ring. What it is likely to be is asked for before it is known.
    template <class Asked>
    __device__ void make(const FoldChunks &call, int column, Asked &stream, Folded &state) {
        if (block < 0 && entry < 0) return;
        const Chunks &chunks = call.chunks;
        const Saves &saves = call.saves;
        const long long guess = likely(call);
        // Addresses first: loads on two paths would wait for each other.
        const long long *const target =
            entry < 0 ? call.ended.slots + block : saves.target + entry;
        const long long *const source = entry < 0 ? chunks.last + block : saves.source + entry;
        const long long last = *source;
        long long position = 0, row = 0;
        to = *target;
        if (guess >= 0) position = chunks.position[guess], row = chunks.row[guess];
        Begins begins;
        begins.load(chunks, call.window_from, call.rows);
        if (guess >= 0) stream.begin(call, guess, column, 0, guess % BLOCK);
        const long long token = entry < 0 ? last : last - saves.old;
        live = entry < 0 ? to > 0 : last >= 0;
        if (!live) return stream.drop();
        const int lane = threadIdx.x % 32;
        if (token < 0) {
            const long long ring = chunks.ring[last / call.banks.count];
            const long long bank = ring * call.banks.count + last % call.banks.count;
            state.begin(call.banks.at(bank) + column + lane);
            return stream.drop();
        }
        if (token != guess) position = chunks.position[token], row = chunks.row[token];
        const Part part = part_from(call, position, begins.of(chunks, call.window_from, row));
        if (part.bank >= 0) state.begin(call.banks.at(part.bank) + column + lane);
        if (token != guess || part.first > 0 || part.last != guess % BLOCK) {
            stream.drop();
            stream.begin(call, token, column, part.first, part.last);
        }
        stream.fold(state);
    }
};

// Tell all SLICES blocks of a cluster, at `place` in their memory, the sum of the squares of a warp's
// channels.
template <int SLICES>
__device__ inline void tell_squares(float *place, float x) {
    const int lane = threadIdx.x % 32, first = 4 * (lane % (LANES / 4));
    const float4 mine =
        make_float4(__shfl_sync(ALL, x, first), __shfl_sync(ALL, x, first + 1),
                    __shfl_sync(ALL, x, first + 2), __shfl_sync(ALL, x, first + 3));
    const float squares = squares_of_lanes<LANES / 4>(mine);
    if (lane < SLICES) store_in_cluster((unsigned)__cvta_generic_to_shared(place), lane, squares);
}

// Norm a group whose record has met, and store it; `mean` is that of the group's channels.
__device__ inline void store_means(const FoldChunks &call, const float (&squares)[HALVES],
                                   const float *mean, int group, const Place &place, float4 gain,
                                   const Turn &turn) {
    const int lane = threadIdx.x % GROUP_LANES;
    float groups[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) groups[i] = __fadd_rn(squares[2 * i], squares[2 * i + 1]);
    const float4 y =
        normed<MAIN>(four(mean + 4 * lane), squares_of_record(groups), gain, call.eps);
    store_group(place, group, lane, y, turn);
}

template <int SLICES>
__global__ void __launch_bounds__(Shape<SLICES>::THREADS, 2)
    fold_stream(const FoldChunks call) {
    using Of = Shape<SLICES>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto &shared = *reinterpret_cast<StreamShared<SLICES> *>(memory);
    const bool once = takes_one_launch(call);
    // Others of the cluster must have begun when their memory is written.
    begin_in_cluster();
    take_turn();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / Of::WARPS;
    const int column = blockIdx.x % SLICES * Of::SLICE + warp % Of::WARPS * LANES;
    const int group = column / GROUP, group_lane = lane % GROUP_LANES;
    Stream<Of::STAGE, Of::STAGES> stream = {shared.staged[part][warp % Of::WARPS]};
    Task task(call, (long long)(blockIdx.x / SLICES) * PARTS + part);
    Folded state;
    task.make(call, column, stream, state);
    const bool record = task.live && task.block >= 0, stores = record && column % GROUP == 0;
    float4 gain = {};
    Turn turn = {};
    Place place = {};
    if (stores) gain = four(call.pages.weight + group * GROUP + 4 * group_lane);
    if (stores && group == GROUPS - 1) turn.load(call.ended.turn(task.block), group_lane);
    if (stores) place = call.pages.place(task.to);
    __syncwarp();
    await_cluster();
    float *const mean = shared.mean[part];
    if (record) {
        const float x = quotient(state.weighted, state.total);
        mean[column % Of::SLICE + lane] = x;
        tell_squares<SLICES>(&shared.squares[part][column / LANES], x);
    }
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
    if (stores) {
        store_means(call, shared.squares[part], mean + column % Of::SLICE, group, place, gain,
                    turn);
    }
    if (record || !task.live) return;
    // Banks are written once all parts of the cluster have read theirs.
    float *const to =
        once ? call.banks.at(task.to) : call.saves.fetched + task.entry * (3ll * MAIN);
    state.store(to + column + lane);
}

// Write one bank.
__global__ void __launch_bounds__(FOLD_THREADS) write_banks(const FoldChunks call) {
    const Saves &saves = call.saves;
    const long long nth = blockIdx.x, source = saves.source[nth], target = saves.target[nth];
    take_turn();
    if (source < 0) return;
    const float4 *const from =
        reinterpret_cast<const float4 *>(saves.fetched + nth * (3 * MAIN)) + threadIdx.x;
    float4 *const to = reinterpret_cast<float4 *>(call.banks.at(target)) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 3; i++) to[i * (MAIN / 4)] = from[i * (MAIN / 4)];
}
