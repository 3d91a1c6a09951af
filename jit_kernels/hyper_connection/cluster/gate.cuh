// The last warps: they make gates and matrices of sums.
#pragma once

#include "boxes.cuh"

// Add up what the ranks told of one line, by pairs.
__device__ inline float add_ranks(const float *told, int ranks) {
    float sums[MAX_RANKS];
#pragma unroll
    for (int r = 0; r < MAX_RANKS; r++) sums[r] = r < ranks ? told[r * TOLD] : 0.0f;
#pragma unroll
    for (int step = 1; step < MAX_RANKS; step *= 2) {
#pragma unroll
        for (int r = 0; r < MAX_RANKS; r += 2 * step) sums[r] += sums[r + step];
    }
    return sums[0];
}

// Of four lanes' logits, a row's, the shares that a lane has of their exponentials.
__device__ inline float softmax(float z) {
    float top = fmaxf(z, __shfl_xor_sync(ALL, z, 1));
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
    const float mine = exponential(z - top);
    float sum = mine + __shfl_xor_sync(ALL, mine, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    return mine * reciprocal(sum);
}

// Leave a token's matrix to the balancer.
struct Batches {
    Turn<2> turn;
    int filled = 0;

    template <class Memory>
    __device__ void add(Memory &shared, float x, int place, bool last) {
        const int lane = threadIdx.x % 32;
        if (filled == 0) await_phase(&shared.emptied[turn.slot], turn.phase ^ 1);
        float(&to)[STREAMS * STREAMS + 1] = shared.matrices[turn.slot][filled];
        if (lane >= 2 * STREAMS && lane < LINES) to[lane - 2 * STREAMS] = x;
        if (lane == LINES) to[STREAMS * STREAMS] = __int_as_float(place);
        if (++filled < BATCH && !last) return;
        __syncwarp();
        if (lane == 0) arrive(&shared.filled[turn.slot]);
        filled = 0;
        turn.advance();
    }
};

// Hear the sums of the block's own tokens; send their gates, write the result's shares, leave the rest
// to the balancer. A lane has one line.
template <bool HEAD, class Memory>
__device__ inline void run_gater(const Call &call, const Tensors &tensors, const Part &part,
                                 Memory &shared) {
    const int lane = threadIdx.x % 32, last = part.tiles - 1;
    const Line<HEAD> line(call);
    Turn<Memory::COUNT> turn;
    Batches batches;
#pragma unroll 1
    for (int tile = 0; tile <= last; tile++, turn.advance()) {
        const int slot = turn.slot;
        if (lane == 0) expect_bytes(&shared.heard[slot], TOKENS * TOLD * sizeof(float));
        if constexpr (Memory::OWED) {
            if (lane == 0) {
                await_phase(&shared.paid[slot], turn.phase);
                store_tile(tensors.after, part, shared, tile, slot);
                const int next = tile + Memory::OWED_TILES;
                if (next <= last) {
                    fetch_result(call, tensors.result, part, shared, next,
                                 (slot + Memory::OWED_TILES) % Memory::COUNT);
                }
            }
            __syncwarp();
        }
        await_phase(&shared.heard[slot], turn.phase);
#pragma unroll 1
        for (int own = 0; own < part.owned(); own++) {
            const int token = own * part.ranks + part.rank, place = part.token(tile) + token;
            const float *const told = &shared.told[slot][own * part.ranks][min(lane, LINES)];
            const float sum = add_ranks(told, part.ranks);
            const float z = line.logit(call, sum), gate = sigmoid(z);
            const float4 gates = gates_of(gate + call.hc_eps);
            if (lane < part.ranks) {
                send(at_rank(&shared.gates[slot][token], lane), gates,
                     at_rank(&shared.gated[slot], lane));
            }
            const bool live = place < call.tokens;
            if constexpr (!HEAD) {
                float *const shares = call.shares + (long long)place * SHARES;
                if (live && lane / STREAMS == 1) {
                    shares[STREAMS * STREAMS + lane - STREAMS] = 2.0f * gate;
                }
                batches.add(shared, softmax(z) + call.hc_eps, place,
                            tile == last && own == part.owned() - 1);
            }
        }
        if constexpr (Memory::OWED) {
            if (lane == 0) {
                await_boxes_read();
                arrive(&shared.stored[slot]);
            }
        }
    }
}

// Of a matrix whose rows and columns are divided by a number each, set those of rows, or of columns, so
// that sums become one: to the sum over what the others divide, and `eps` times what they were before.
// Four divisions are one, by the product of all, which sums need not wait for.
template <bool ROWS>
__device__ inline void normalise(const float (&a)[STREAMS][STREAMS], const float (&others)[STREAMS],
                                 float (&by)[STREAMS], float eps) {
    const float low = others[0] * others[1], high = others[2] * others[3];
    const float rest[STREAMS] = {others[1] * high, others[0] * high, others[3] * low,
                                 others[2] * low};
    const float share = reciprocal(low * high);
    float sums[STREAMS] = {};
#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            sums[i] = fmaf(ROWS ? a[i][j] : a[j][i], rest[j], sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < STREAMS; i++) by[i] = fmaf(sums[i], share, by[i] * eps);
}

// Balance a token's matrix, and write it. What a row is divided by is what all divisions of
// that row come to: dividing by `sum / by + eps` makes it `sum + eps * by`.
__device__ inline void balance(const Call &call, float (&a)[STREAMS][STREAMS], int place) {
    float rows[STREAMS] = {1.0f, 1.0f, 1.0f, 1.0f}, columns[STREAMS] = {1.0f, 1.0f, 1.0f, 1.0f};
    normalise<false>(a, rows, columns, call.hc_eps);
#pragma unroll 1
    for (int i = 1; i < call.iterations; i++) {
        normalise<true>(a, columns, rows, call.hc_eps);
        normalise<false>(a, rows, columns, call.hc_eps);
    }
    for (float &by : rows) by = reciprocal(by);
    for (float &by : columns) by = reciprocal(by);
    float4 *const to = reinterpret_cast<float4 *>(call.shares + (long long)place * SHARES);
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        to[i] = make_float4(a[i][0] * rows[i] * columns[0], a[i][1] * rows[i] * columns[1],
                            a[i][2] * rows[i] * columns[2], a[i][3] * rows[i] * columns[3]);
    }
}

// Balance the matrices of the block's own tokens, batch by batch, a lane one of them.
template <class Memory>
__device__ inline void run_balancer(const Call &call, const Part &part, Memory &shared) {
    const int lane = threadIdx.x % 32;
    Turn<2> batch;
#pragma unroll 1
    for (int left = part.tiles * part.owned(); left > 0; left -= BATCH, batch.advance()) {
        await_phase(&shared.filled[batch.slot], batch.phase);
        const float(&from)[STREAMS * STREAMS + 1] = shared.matrices[batch.slot][lane % BATCH];
        float a[STREAMS][STREAMS];
        for (int i = 0; i < STREAMS * STREAMS; i++) a[i / STREAMS][i % STREAMS] = from[i];
        const int place = __float_as_int(from[STREAMS * STREAMS]);
        __syncwarp();
        if (lane == 0) arrive(&shared.emptied[batch.slot]);
        if (lane >= min(BATCH, left) || place >= call.tokens) continue;
        balance(call, a, place);
    }
}
