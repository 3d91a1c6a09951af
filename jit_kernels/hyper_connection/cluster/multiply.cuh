// The first warps: they multiply tiles by `fn`.
#pragma once

#include "weights.cuh"

// Sums of a line that a multiplier has in turn.
constexpr int CHAINS = 2;

// Add the squares of the channels that a lane has for products, of two rows.
__device__ __forceinline__ void add_squares(float (&squares)[2], const unsigned (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        squares[i % 2] = fmaf(low_of(x[i]), low_of(x[i]), squares[i % 2]);
        squares[i % 2] = fmaf(high_of(x[i]), high_of(x[i]), squares[i % 2]);
    }
}

// Multiply a multiplier's channels of a tile, `CHAINS` sums of each line in turn: a
// product waits for the one before it in its sum. Squares as products of rows with themselves would
// take registers that loads ahead need.
template <int EIGHTS>
__device__ __forceinline__ void multiply_streams(const Weights<EIGHTS> &weights,
                                                 const unsigned char *streams,
                                                 float (&sums)[CHAINS][EIGHTS][4],
                                                 float (&squares)[2]) {
    const int lane = threadIdx.x % 32, worker = threadIdx.x / 32;
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const unsigned at =
        shared_address(streams) + place_of(lane % 16, worker * PIECE / 8 + lane / 16);
    // What is multiplied next is on the way meanwhile.
    unsigned a[2][4];
    load_matrices(a[0], at);
#pragma unroll
    for (int i = 0; i < STREAMS * STEPS; i++) {
        const int next = i + 1;
        const unsigned(&x)[4] = a[i % 2];
        if (next < STREAMS * STEPS) {
            load_matrices(a[next % 2], (at ^ next % STEPS * 32) + next / STEPS * STRIP_BYTES);
        }
        weights.multiply_step(i, x, sums[i % CHAINS]);
        add_squares(squares, x);
    }
}

// Write a multiplier's sums for others to add.
template <int EIGHTS>
__device__ inline void write_parts(Parts &parts, const float (&sums)[EIGHTS][4],
                                   const float (&squares)[2]) {
    const int lane = threadIdx.x % 32, worker = threadIdx.x / 32, row = lane / 4;
    float(&to)[TOKENS][LINES] = parts.lines[worker];
#pragma unroll
    for (int eight = 0; eight < EIGHTS; eight++) {
        const float(&mine)[4] = sums[eight];
        const int line = eight * 8 + lane % 4 * 2;
        *reinterpret_cast<float2 *>(&to[row][line]) = make_float2(mine[0], mine[1]);
        *reinterpret_cast<float2 *>(&to[row + 8][line]) = make_float2(mine[2], mine[3]);
    }
    // Four lanes have a row's channels.
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = squares[i] + __shfl_xor_sync(ALL, squares[i], 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
        if (lane % 4 == 0) parts.squares[worker][row + i * 8] = sum;
    }
}

// Leave a multiplier's sums of a tile to the adder when it has added up those of the tile before.
template <int EIGHTS, class Memory>
__device__ inline void leave_sums(Memory &shared, unsigned phase, const float (&lines)[EIGHTS][4],
                                  const float (&squares)[2]) {
    await_phase(&shared.added, phase ^ 1);
    write_parts(shared.parts, lines, squares);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&shared.summed);
}

// Two lanes of an adder have a token, every other four of its lines each: so they read without
// conflict. The squares are the first one's last four.
struct AdderLane {
    int token, half;

    __device__ AdderLane() : token(threadIdx.x % 32 / 2), half(threadIdx.x % 2) {}

    // Add up the `i`th four over the multipliers, by pairs of them.
    __device__ float4 add_lines(const Parts &parts, int i) const {
        float4 sums[MULTIPLIERS];
#pragma unroll
        for (int w = 0; w < MULTIPLIERS; w++) {
            sums[w] =
                *reinterpret_cast<const float4 *>(&parts.lines[w][token][half * 4 + i * 8]);
        }
#pragma unroll
        for (int step = 1; step < MULTIPLIERS; step *= 2) {
#pragma unroll
            for (int w = 0; w < MULTIPLIERS; w += 2 * step) {
                sums[w] = add_fours(sums[w], sums[w + step]);
            }
        }
        return sums[0];
    }

    // The same for the squares.
    __device__ float add_squares(const Parts &parts) const {
        float sums[MULTIPLIERS];
#pragma unroll
        for (int w = 0; w < MULTIPLIERS; w++) sums[w] = parts.squares[w][token];
#pragma unroll
        for (int step = 1; step < MULTIPLIERS; step *= 2) {
#pragma unroll
            for (int w = 0; w < MULTIPLIERS; w += 2 * step) sums[w] += sums[w + step];
        }
        return sums[0];
    }
};

// Where an adder's lane sends what it adds up of a tile: to the block that owns its token.
struct Told {
    unsigned to, heard;

    template <class Memory>
    __device__ Told(const Part &part, Memory &shared, int slot, AdderLane mine) {
        const int owner = part.owner(mine.token), own = mine.token >> part.log_ranks;
        to = at_rank(&shared.told[slot][own * part.ranks + part.rank][mine.half * 4], owner);
        heard = at_rank(&shared.heard[slot], owner);
    }
    __device__ void send_four(int i, float4 sums) const { send(to + i * 32, sums, heard); }
    __device__ void send_squares(float sum) const {
        send_four(FOURS / 2, make_float4(sum, 0.0f, 0.0f, 0.0f));
    }
};

// Add up what the multipliers leave, and send it; meanwhile they multiply the next tile.
template <class Memory>
__device__ inline void run_adder(const Part &part, Memory &shared) {
    const AdderLane mine;
    const bool first = threadIdx.x % 32 == 0;
    Turn<Memory::COUNT> turn;
    Turn<1> phase;
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; tile++) {
        await_phase(&shared.summed, phase.phase);
        const Told told(part, shared, turn.slot, mine);
#pragma unroll
        for (int i = 0; i < FOURS / 2; i++) {
            told.send_four(i, mine.add_lines(shared.parts, i));
        }
        const float squares = mine.add_squares(shared.parts);
        __syncwarp();
        if (first) arrive(&shared.added);
        if (mine.half == 0) told.send_squares(squares);
        turn.advance();
        phase.advance();
    }
}
