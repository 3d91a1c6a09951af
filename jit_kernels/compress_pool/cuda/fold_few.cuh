// Blocks of 128 tokens in small steps, in one launch. A cluster of sixteen has a block, each of its
// blocks of threads 32 channels, so that all of a part's tokens are on their way at once; weights
// are made side by side, and the sums are what two warps do one after the other. One more cluster
// is the only one that touches rings: it folds what reads them and what is saved, two parts at a
// time. Each of its blocks of threads has read what it needs of its channels before it writes any
// of them, and so no second launch is needed.
#pragma once

#include "fold.cuh"

constexpr int FEW_RANKS = 16, FEW_CHANNELS = MAIN / FEW_RANKS, FEW_SLOTS = 2;
constexpr int SLOT_THREADS = FOLD_WARPS * 32, FEW_THREADS = FEW_SLOTS * SLOT_THREADS;
// A step is taken so if it has no more blocks and entries together, nor entries and rows.
constexpr int FEW_ITEMS = 14, FEW_RINGS = 8;

// Where a part is folded: weights take the place of gates, products that of kv. The record meets in
// the even blocks of threads of a cluster: numbers of two of them, squares of all.
struct FewSlot {
    float kv[BLOCK][FEW_CHANNELS], gate[BLOCK][FEW_CHANNELS], decay[BLOCK][FEW_CHANNELS];
    float highest[FOLD_WARPS][FEW_CHANNELS];
    float sums[2][FEW_CHANNELS], own[FEW_CHANNELS], mean[GROUP], squares[FEW_RANKS];
    float gain[GROUP], turn[2 * TURNED];
};

// What the cluster of rings does: `part.token` below 0 if there is nothing to fold; an entry goes
// to bank `target`, a block to slot `target`.
struct Item {
    Part part;
    long long target;
    bool live;
};

struct FewShared {
    FewSlot slots[FEW_SLOTS];
    float kept[FEW_ITEMS][3][FEW_CHANNELS];
    Item items[FEW_ITEMS];
};

// Tokens whose numbers are read from shared memory at once.
constexpr int AT_ONCE = 8;

// A warp's share of a part: tokens `begin` to `begin + EACH` of the 128 up to its last one, of
// which a lane has one channel.
struct Share {
    FewSlot &slot;
    int column, begin;
    // First what is added to gates, then these.
    float gate[EACH];

    // Bring rows on their way that end with that of a token.
    __device__ void stage(const FoldChunks &call, long long token) {
        constexpr int LANES = FEW_CHANNELS / 4, ROWS = 32 / LANES;
        const int lane = threadIdx.x % 32, at = 4 * (lane % LANES);
#pragma unroll
        for (int i = 0; i < EACH; i += ROWS) {
            const int place = begin + i + lane / LANES;
            const long long mine = token - (BLOCK - 1 - place);
            if (mine < 0) continue;
            const float *const row = call.from.rows + mine * call.from.stride + column + at;
            copy_ahead(&slot.kv[place][at], row);
            copy_ahead(&slot.gate[place][at], row + MAIN);
        }
        end_copies();
    }
    // Ask for what is added to the gates of tokens up to the phase `last`.
    __device__ void load_ape(const FoldChunks &call, int last) {
        const float *const from = call.from.ape + MAIN + column + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int phase = last - (BLOCK - 1) + begin + i;
            gate[i] = phase < 0 ? 0.0f : from[phase * FOLDED_ROW];
        }
    }
    // Fold a part whose tokens are on their way, from a state of [3, FEW_CHANNELS] if there is one:
    // leave the sums in the slot, and return the lane's maximum.
    __device__ float fold(const Part &part, const float (*kept)[FEW_CHANNELS], int barrier) {
        const int lane = threadIdx.x % 32, warp = begin / EACH;
        const int first = part.first + BLOCK - 1 - part.last;
        float mine = -INFINITY;
        await_copies<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float plain = slot.gate[begin + i][lane];
            gate[i] = begin + i >= first ? __fadd_rn(plain, gate[i]) : -INFINITY;
            mine = fmaxf(mine, gate[i]);
        }
        slot.highest[warp][lane] = mine;
        meet_some<SLOT_THREADS>(barrier);
        float highest = kept ? kept[0][lane] : -INFINITY, every = highest;
#pragma unroll
        for (int i = 0; i < FOLD_WARPS; i++) {
            const float theirs = slot.highest[i][lane];
            if (i < warp) highest = fmaxf(highest, theirs);
            every = fmaxf(every, theirs);
        }
        weigh(scaled(highest), first);
        meet_some<SLOT_THREADS>(barrier);
        if (warp < 2) add_up(warp, kept ? kept[1 + warp][lane] : 0.0f, first);
        meet_some<SLOT_THREADS>(barrier);
        return every;
    }
    // A token that is none changes no bit of a sum.
    __device__ void weigh(float highest, int first) {
        const int lane = threadIdx.x % 32;
        float kv[AT_ONCE];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i % AT_ONCE == 0) {
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) kv[j] = slot.kv[begin + i + j][lane];
            }
            float decay = 1.0f, weight = -0.0f, product = -0.0f;
            if (begin + i >= first) {
                const Weight one = weight_of(highest, scaled(gate[i]));
                highest = one.highest, decay = one.decay, weight = one.weight;
                product = __fmul_rn(weight, kv[i % AT_ONCE]);
            }
            slot.decay[begin + i][lane] = decay;
            slot.gate[begin + i][lane] = weight;
            slot.kv[begin + i][lane] = product;
        }
    }
    // One warp adds up the weights, another the products, AT_ONCE tokens after they are read.
    __device__ void add_up(int which, float sum, int first) {
        const int lane = threadIdx.x % 32;
        const float(*const added)[FEW_CHANNELS] = which ? slot.kv : slot.gate;
        float decays[AT_ONCE], terms[AT_ONCE];
        const auto read = [&](int from) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                decays[j] = slot.decay[from + j][lane], terms[j] = added[from + j][lane];
            }
        };
        first -= first % AT_ONCE;
        read(first);
#pragma unroll 2
        for (int i = first; i < BLOCK; i += AT_ONCE) {
            float decay[AT_ONCE], term[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) decay[j] = decays[j], term[j] = terms[j];
            if (i + AT_ONCE < BLOCK) read(i + AT_ONCE);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) sum = fmaf(sum, decay[j], term[j]);
        }
        slot.sums[which][lane] = sum;
    }
};

// Bring on its way what the first warp needs to store a group of the nth record.
__device__ inline void stage_few_norm(const FoldChunks &call, long long nth, int rank,
                                      FewSlot &slot) {
    const int group = rank / 2, at = 4 * (threadIdx.x % 32);
    if (at < GROUP) copy_ahead(&slot.gain[at], call.pages.weight + group * GROUP + at);
    if (group == GROUPS - 1) copy_ahead(&slot.turn[at], call.ended.turn(nth) + at);
    end_copies();
}

// Tell the cluster of a block's mean, of which this warp makes FEW_CHANNELS.
__device__ inline void tell_mean(FewSlot &slot, int rank) {
    const int lane = threadIdx.x % 32;
    const float x = quotient(slot.sums[1][lane], slot.sums[0][lane]);
    slot.own[lane] = x;
    __syncwarp();
    const float squares = squares_of_lanes<FEW_CHANNELS / 4>(four(&slot.own[4 * (lane % 8)]));
    const int half = rank % 2 * FEW_CHANNELS;
    store_in_cluster((unsigned)__cvta_generic_to_shared(&slot.mean[half + lane]), rank & ~1, x);
    if (lane < FEW_RANKS / 2) {
        const unsigned at = (unsigned)__cvta_generic_to_shared(&slot.squares[rank]);
        store_in_cluster(at, 2 * lane, squares);
    }
}

// Store the group of a record that has met here; a warp of an even block of threads does.
__device__ inline void store_mean(const FoldChunks &call, long long to, const FewSlot &slot,
                                  int rank) {
    const int lane = threadIdx.x % GROUP_LANES;
    float groups[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        groups[i] = __fadd_rn(slot.squares[2 * i], slot.squares[2 * i + 1]);
    }
    Turn turn = {};
    if (rank / 2 == GROUPS - 1) turn.load(slot.turn, lane);
    const float4 x = normed<MAIN>(four(&slot.mean[4 * lane]), squares_of_record(groups),
                                  four(&slot.gain[4 * lane]), call.eps);
    store_group(call.pages, to, rank / 2, lane, x, turn);
}

// Fold a block that reads no ring, and store its record. What it is likely to be is asked for
// before it is known: the nth whole block of the only row, which begins with a block.
__device__ inline void fold_few_block(const FoldChunks &call, int nth, int rank, FewSlot &slot) {
    const Chunks &chunks = call.chunks;
    const int warp = threadIdx.x / 32;
    const long long likely = (long long)nth * BLOCK + BLOCK - 1;
    const bool bold = call.rows == 1 && likely < call.tokens;
    Share share = {slot, rank * FEW_CHANNELS, warp * EACH};
    const long long to = call.ended.slots[nth], token = chunks.last[nth];
    long long position = 0, row = 0;
    if (bold) position = chunks.position[likely], row = chunks.row[likely];
    Begins begins;
    begins.load(chunks, call.window_from, call.rows);
    if (bold) share.stage(call, likely);
    share.load_ape(call, BLOCK - 1);
    if (warp == 0) stage_few_norm(call, nth, rank, slot);
    Part part = {-1, -1, 0, 0};
    const bool right = bold && token == likely;
    if (to > 0) {
        if (!right) position = chunks.position[token], row = chunks.row[token];
        part = part_from(call, token, position, begins.of(chunks, call.window_from, row));
    }
    if (to <= 0 || part.bank >= 0) {
        await_copies<0>();
        return;
    }
    __syncwarp();
    begin_in_cluster();
    if (!right) {
        await_copies<0>();
        __syncwarp();
        share.stage(call, token);
    }
    share.fold(part, nullptr, 1);
    await_cluster();
    if (warp == 0) tell_mean(slot, rank);
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
    if (warp == 0 && rank % 2 == 0) store_mean(call, to, slot, rank);
}

// The token of an item, entries before blocks, if there is one row that begins with a block and is
// saved at its end; else -1.
__device__ inline long long likely_token(const FoldChunks &call, int nth) {
    const int block = nth - call.saves.count;
    const long long token =
        block < 0 ? (long long)call.tokens + block : (long long)block * BLOCK + BLOCK - 1;
    return call.rows == 1 && 0 <= token && token < call.tokens ? token : -1;
}

// The item of a lane; all lanes of a warp take part.
__device__ inline Item find_item(const FoldChunks &call, int nth) {
    const Chunks &chunks = call.chunks;
    const Saves &saves = call.saves;
    const bool entry = nth < saves.count, any = nth < saves.count + call.blocks;
    const long long likely = likely_token(call, nth), old = saves.old;
    long long source = -1, position = 0, row = 0;
    Item item = {{-1, -1, 0, 0}, 0, false};
    if (any && entry) source = saves.source[nth], item.target = saves.target[nth];
    if (any && !entry) {
        item.target = call.ended.slots[nth - saves.count];
        source = chunks.last[nth - saves.count] + old;
        if (item.target <= 0) source = -1;
    }
    const bool bold = any && likely >= 0;
    if (bold) position = chunks.position[likely], row = chunks.row[likely];
    Begins begins;
    begins.load(chunks, call.window_from, call.rows);
    const bool folds = any && source >= old;
    if (folds && !(bold && source - old == likely)) {
        position = chunks.position[source - old], row = chunks.row[source - old];
    }
    const Begin begin = begins.of(chunks, call.window_from, folds ? row : 0);
    if (folds) item.part = part_from(call, source - old, position, begin);
    if (source >= 0 && !folds) {
        const long long ring = chunks.ring[source / call.banks.count];
        item.part.bank = ring * call.banks.count + source % call.banks.count;
    }
    // Blocks that read no ring have a cluster of their own.
    item.live = source >= 0 && (entry || item.part.bank >= 0);
    return item;
}

// Write a bank's channels; a warp does.
__device__ inline void write_few(const FoldChunks &call, long long bank, int rank, float highest,
                                 float total, float weighted) {
    float *const to = call.banks.at(bank) + rank * FEW_CHANNELS + threadIdx.x % 32;
    to[0] = highest, to[MAIN] = total, to[2 * MAIN] = weighted;
}

// Find all items, and read what they need of rings.
__device__ inline void find_items(const FoldChunks &call, int count, int rank, FewShared &shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        const Item item = find_item(call, lane);
        if (lane < count) shared.items[lane] = item;
    }
    __syncthreads();
    for (int nth = warp; nth < count; nth += FEW_THREADS / 32) {
        const Item &item = shared.items[nth];
        if (!item.live || item.part.bank < 0) continue;
        const float *const from = call.banks.at(item.part.bank) + rank * FEW_CHANNELS + lane;
#pragma unroll
        for (int i = 0; i < 3; i++) shared.kept[nth][i][lane] = from[i * MAIN];
    }
    __syncthreads();
}

// Fold all that reads rings or writes them, an item for each slot at a time.
__device__ inline void fold_few_rings(const FoldChunks &call, int rank, FewShared &shared) {
    const int thread = threadIdx.x % SLOT_THREADS, warp = thread / 32, lane = threadIdx.x % 32;
    const int which = threadIdx.x / SLOT_THREADS, entries = call.saves.count;
    const int count = entries + call.blocks;
    FewSlot &slot = shared.slots[which];
    Share share = {slot, rank * FEW_CHANNELS, warp * EACH};
    long long staged = which < entries ? likely_token(call, which) : -1;
    int last = (int)(staged % BLOCK);
    if (staged >= 0) share.stage(call, staged), share.load_ape(call, last);
    find_items(call, count, rank, shared);
    for (int first = 0; first < count; first += FEW_SLOTS) {
        const int nth = first + which;
        const Item &item = shared.items[min(nth, count - 1)];
        const bool live = nth < count && item.live, entry = nth < entries;
        bool meets = false;
        for (int i = max(first, entries); i < min(first + FEW_SLOTS, count); i++) {
            meets |= shared.items[i].live;
        }
        if (live) {
            const Part &part = item.part;
            const auto kept = part.bank < 0 ? nullptr : shared.kept[nth];
            if (!entry && warp == 0) stage_few_norm(call, nth - entries, rank, slot);
            if (part.token >= 0) {
                if (part.token != staged) {
                    await_copies<0>();
                    __syncwarp();
                    share.stage(call, part.token);
                }
                if (staged < 0 || part.last != last) share.load_ape(call, part.last);
                const float highest = share.fold(part, kept, 1 + which);
                if (entry && warp == 0) {
                    write_few(call, item.target, rank, highest, slot.sums[0][lane],
                              slot.sums[1][lane]);
                }
            } else if (warp == 0) {
                write_few(call, item.target, rank, kept[0][lane], kept[1][lane], kept[2][lane]);
            }
        }
        staged = -1;
        if (!meets) continue;
        // All have read what they were told last, or have begun.
        __syncwarp();
        arrive_in_cluster();
        await_cluster();
        if (live && !entry && warp == 0) tell_mean(slot, rank);
        __syncwarp();
        arrive_in_cluster();
        await_cluster();
        if (live && !entry && warp == 0 && rank % 2 == 0) {
            store_mean(call, item.target, slot, rank);
        }
        __syncwarp();
    }
    await_copies<0>();
}

__global__ void __launch_bounds__(FEW_THREADS, 2) fold_few(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    FewShared &shared = *reinterpret_cast<FewShared *>(memory);
    const int cluster = blockIdx.x / FEW_RANKS, rank = blockIdx.x % FEW_RANKS;
    // Rings take the longest: theirs is the first.
    if (cluster == 0) {
        fold_few_rings(call, rank, shared);
    } else if (threadIdx.x < SLOT_THREADS) {
        fold_few_block(call, cluster - 1, rank, shared.slots[0]);
    }
}
