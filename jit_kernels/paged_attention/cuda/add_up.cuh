// Adds up what the teams of a row have left, in the order of teams. A block takes a unit: two heads,
// eight apart, and the channels of one rank, a quad a thread.
//
// It asks for no more shared memory than a unit of each team takes, 32 KB at most: what a multiprocessor keeps for that is taken from the L1 cache,
// and what begins beside it, products whose weights pass through that cache, would find no more than
// this kernel leaves.
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
    __device__ void write(const Call &call, const Row &row, const Unit &unit,
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

    __device__ void write(const Call &call, const Row &row, const Unit &unit,
                          const float (&sums)[2][2]) const {
        __shared__ float largest[2][OWN];
        const int turned = unit.channel() - (WIDTH - TURNED);
        float x[2][2], cosine = 1.0f, sine = 0.0f;
        if (turned >= 0) {
            const float *const at = rotation + row.nth * 2 * TURNED + turned;
            cosine = read_float(at);
            sine = -read_float(at + TURNED + 1);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned pair = pair_of(sums[half][0], sums[half][1]);
            x[half][0] = __uint_as_float(pair << 16);
            x[half][1] = __uint_as_float(pair & 0xffff0000u);
            if (turned >= 0) turn(x[half], cosine, sine);
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

    // Products first, then one addition, as elsewhere.
    __device__ static void turn(float (&x)[2], float cosine, float sine) {
        const float even = x[0], odd = x[1];
        x[0] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
        x[1] = __fadd_rn(__fmul_rn(odd, cosine), __fmul_rn(even, sine));
    }
};

// What a team of a row counts for: a lane's, of one head.
__device__ inline float share_of_team(const Call &call, const Row &row, int head, int team,
                                      float sink) {
    const float *const from = call.sums + (row.nth * call.teams + team) * HEADS + head;
    const float sum = team < row.teams ? __ldcg(from) : minus_infinity();
    const float base = base_of(largest_of_lanes<32>(fmaxf(sum, sink)));
    const float weight = power(sum - base);
    return weight * share_of(1.0f, sum_of_lanes<32>(weight) + power(sink - base));
}

// Ask for the unit of each team of a row, a lane for each; `come` counts their bytes.
__device__ inline void ask_teams(const Call &call, const Row &row, const Unit &unit, float4 *quads,
                                 unsigned long long *come) {
    constexpr unsigned BYTES = UNIT_QUADS * sizeof(float4);
    const int lane = threadIdx.x;
    if (lane == 0) {
        make_barrier(come);
        show_to_copies();
        expect_bytes(come, row.teams * BYTES);
    }
    __syncwarp();
    if (lane >= row.teams) return;
    const long long team = row.nth * call.teams + lane;
    const float4 *const from =
        call.partials + (team * TEAM + unit.rank) * QUADS + unit.pair * UNIT_QUADS;
    bulk_copy(quads + lane * UNIT_QUADS, from, BYTES, come);
}

// Shared memory has a unit of each team.
template <class Result>
__global__ void __launch_bounds__(UNIT_THREADS)
    add_up(const __grid_constant__ Call call, const __grid_constant__ Result result) {
    extern __shared__ __align__(16) float4 quads[];
    __shared__ float shares[2][MOST_TEAMS];
    __shared__ unsigned long long come;
    const Unit unit;
    if (unit.head() >= call.heads) return;
    take_turn();
    Row row(call, blockIdx.y);
    row.take(call, row.length_of(call.window), row.length_of(call.extra));
    if (threadIdx.x < 32) ask_teams(call, row, unit, quads, &come);
    const int weighed = unit.head() + unit.chunk * 8, lane = threadIdx.x % 32;
    const float sink =
        weighed < call.heads ? read_float(call.sink + weighed) * LOG2_E : minus_infinity();
    shares[unit.chunk][lane] = share_of_team(call, row, weighed, lane, sink);
    __syncthreads();
    await_own_phase(&come, 0);
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
    result.write(call, row, unit, sums);
}
