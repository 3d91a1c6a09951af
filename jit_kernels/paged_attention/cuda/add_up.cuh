// Adds up what the teams of a row have left, in the order of teams. A block takes a unit: two heads,
// eight apart, and the channels of one rank, a quad a thread.
//
// It asks for no more shared memory than a unit of each team takes, 32 KB at most: what a
// multiprocessor keeps for that is taken from the L1 cache, and what begins beside it, products whose
// weights pass through that cache, would find no more than this kernel leaves.
#pragma once

#include "results.cuh"

constexpr int UNIT_THREADS = UNIT_QUADS, UNITS = PAIRS * TEAM, TURNED = 64;
static_assert(UNIT_THREADS == OWN * 32, "a warp has a chunk of the channels");
static_assert(OWN == 2, "a warp weighs the teams of one of the two heads");
static_assert(MOST_TEAMS <= 32, "a lane weighs a team");

// A thread's place in a unit: the head of the first two of its four numbers, and their channel.
struct Unit {
    int rank, pair, chunk, line, quarter;

    __device__ Unit()
        : rank(blockIdx.x % TEAM), pair(blockIdx.x / TEAM), chunk(threadIdx.x / 32),
          line(threadIdx.x % 32 / 4), quarter(threadIdx.x % 4) {}

    __device__ int head() const { return pair / 8 * 16 + pair % 8; }
    __device__ int channel() const { return (rank * OWN + chunk) * CHUNK + line * 8 + quarter * 2; }
};

// Sums as they are.
struct Plain {
    struct Turn {};
    __device__ Turn turn_of(const Row &, const Unit &) const { return {}; }

    __device__ void write(const Call &call, const Row &row, const Unit &unit, const Turn &,
                          const float (&x)[2][2]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int head = unit.head() + half * 8;
            if (head < call.heads) {
                write_pair(call, row.nth, head, unit.channel(), x[half][0], x[half][1]);
            }
        }
    }
};

// Sums rounded to bfloat16, turned back by `rotation`, [rows, 2, TURNED], and rounded again: codes
// with a scale for the channels of a rank. It is, to the bit, what `round_heads` of
// `rms_norm/cuda` makes of `Plain`.
struct Rounded {
    const float *rotation;
    unsigned char *codes;
    float *scales;
    long long scale_stride;

    // Cosine and sine of a thread's channels, if they turn.
    struct Turn {
        bool turns;
        float cosine, sine;

        // Products first, then one addition, as elsewhere.
        __device__ void apply(float (&x)[2]) const {
            if (!turns) return;
            const float even = x[0], odd = x[1];
            x[0] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
            x[1] = __fadd_rn(__fmul_rn(odd, cosine), __fmul_rn(even, sine));
        }
    };

    __device__ Turn turn_of(const Row &row, const Unit &unit) const {
        const int turned = unit.channel() - (WIDTH - TURNED);
        const float *const at = rotation + row.nth * 2 * TURNED + turned;
        if (turned < 0) return {};
        return {true, read_float(at), -read_float(at + TURNED + 1)};
    }

    __device__ void write(const Call &call, const Row &row, const Unit &unit, const Turn &turn,
                          const float (&sums)[2][2]) const {
        __shared__ float largest[2][OWN];
        float x[2][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned pair = pair_of(sums[half][0], sums[half][1]);
            x[half][0] = __uint_as_float(pair << 16);
            x[half][1] = __uint_as_float(pair & 0xffff0000u);
            turn.apply(x[half]);
            const float most = fmaxf(fabsf(x[half][0]), fabsf(x[half][1]));
            const float of_warp = largest_of_lanes<32>(most);
            if (threadIdx.x % 32 == 0) largest[half][unit.chunk] = of_warp;
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int head = unit.head() + half * 8;
            if (head >= call.heads) continue;
            const unsigned exponent = scale_exponent(fmaxf(largest[half][0], largest[half][1]));
            const float factor = power_of_two(254 - exponent);
            const unsigned both = e4m3_codes(x[half][0] * factor, x[half][1] * factor, 0.0f, 0.0f);
            const long long line = row.nth * call.heads + head;
            unsigned char *const to = codes + line * WIDTH + unit.channel();
            *reinterpret_cast<unsigned short *>(to) = (unsigned short)both;
            if (threadIdx.x == 0) {
                scales[(head * TEAM + unit.rank) * scale_stride + row.nth] = power_of_two(exponent);
            }
        }
    }
};

// Ask for what a team of a row has left as its sum: a lane's team, of one head.
__device__ inline float sum_of_team(const Call &call, const Row &row, int head) {
    const int team = threadIdx.x % 32;
    if (team >= row.teams) return minus_infinity();
    return read_float(call.sums + (row.nth * HEADS + head) * call.teams + team);
}

// Ask for what this thread adds up, a quad of each team.
__device__ inline void ask_teams(const Call &call, const Row &row, const Unit &unit, float4 *quads) {
    const long long first = row.nth * call.teams * TEAM + unit.rank;
    const float4 *const from =
        call.partials + first * QUADS + unit.pair * UNIT_QUADS + threadIdx.x;
#pragma unroll 4
    for (int team = 0; team < row.teams; team++) {
        copy_ahead(quads + team * UNIT_QUADS + threadIdx.x, from + team * (TEAM * QUADS));
    }
}

// What a lane's team counts for, by its sum; the sink has a share as well.
__device__ inline float share_of_team(float sum, float sink) {
    const float base = base_of(largest_of_lanes<32>(fmaxf(sum, sink)));
    const float weight = power(sum - base);
    return weight * share_of(1.0f, sum_of_lanes<32>(weight) + power(sink - base));
}

// Shared memory has a unit of each team. Lengths, rotation and sinks are read before the teams end,
// who write none of them.
template <class Result>
__global__ void __launch_bounds__(UNIT_THREADS)
    add_up(const __grid_constant__ Call call, const __grid_constant__ Result result) {
    extern __shared__ __align__(16) float4 quads[];
    __shared__ float shares[2][MOST_TEAMS];
    const Unit unit;
    if (unit.head() >= call.heads) return;
    const int weighed = unit.head() + unit.chunk * 8, lane = threadIdx.x % 32;
    const bool weighs = weighed < call.heads;
    Row row(call, blockIdx.y);
    const float sink = weighs ? read_float(call.sink + weighed) : minus_infinity();
    const auto turn = result.turn_of(row, unit);
    row.take(call, row.length_of(call.window), row.length_of(call.extra));
    take_turn();
    const float sum = sum_of_team(call, row, weighed);
    ask_teams(call, row, unit, quads);
    shares[unit.chunk][lane] = share_of_team(sum, sink * LOG2_E);
    __syncthreads();
    await_copies();
    float sums[2][2] = {};
#pragma unroll 4
    for (int team = 0; team < row.teams; team++) {
        const float4 quad = quads[team * UNIT_QUADS + threadIdx.x];
        const float low = shares[0][team], high = shares[1][team];
        sums[0][0] = fmaf(low, quad.x, sums[0][0]);
        sums[0][1] = fmaf(low, quad.y, sums[0][1]);
        sums[1][0] = fmaf(high, quad.z, sums[1][0]);
        sums[1][1] = fmaf(high, quad.w, sums[1][1]);
    }
    result.write(call, row, unit, turn, sums);
}
