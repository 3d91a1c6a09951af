// A row of bfloat16 becomes codes and scales in shared memory, by all threads of a block. They are,
// to the bit, what launches of their own make of it: `quantise_rows`, and `norm_rows` in
// `rms_norm/cuda`, whose order of adding up squares is kept.
#pragma once

#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "stream.cuh"

// Channels that a thread takes from memory at once.
constexpr int EIGHT = 8;

__device__ inline void widen(float (&x)[EIGHT], const uint4 &pairs) {
    const unsigned words[EIGHT / 2] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < EIGHT / 2; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Read eight numbers that begin at a multiple of 16 bytes.
__device__ inline void read_eight(float (&x)[EIGHT], const float *from) {
#pragma unroll
    for (int i = 0; i < EIGHT; i += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

__device__ inline unsigned e4m3_codes(const float *x, float factor) {
    return e4m3_codes(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

__device__ inline void write_codes(unsigned char *to, const float (&x)[EIGHT], float factor) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(e4m3_codes(x, factor), e4m3_codes(x + 4, factor));
}

// Of two pairs of numbers those farther from zero, of either sign; of NaN and a number the number.
__device__ inline unsigned larger_pair(unsigned a, unsigned b) {
    unsigned larger;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// The norm that comes before rounding, if any.
struct Norm {
    const float *weight;
    float per_channel, eps;
};

// How a row lies in shared memory: its codes, a scale for each block of them, and what else its
// preparation takes.
struct Room {
    unsigned char *codes;
    float *scales, *more;
};

// Rounds a row as it is. LANES lanes have a block of it, and a warp every eighth block: where eight
// warps share the channels of a product, those that it multiplies itself.
template <int LANES>
struct Rounding {
    static constexpr int PARTS = BLOCK / (LANES * EIGHT);
    // Bytes after each eight blocks, so that blocks of a warp are written to banks of their own.
    static constexpr int PAD = LANES < 16 ? LANES * EIGHT : 0;
    static constexpr int MOST = WARPS * (32 / LANES) * BLOCK;
    static constexpr bool KEEPS_WARPS_APART = true;

    static int bytes(int depth) {
        const int blocks = depth / BLOCK;
        return depth + (blocks + WARPS - 1) / WARPS * PAD + blocks * (int)sizeof(float);
    }
    __device__ static int place(int block) { return block * BLOCK + (unsigned)block / WARPS * PAD; }
    __device__ static Room room(unsigned char *shared, int depth) {
        const int blocks = depth / BLOCK;
        unsigned char *const end = shared + depth + (blocks + WARPS - 1) / WARPS * PAD;
        return {shared, reinterpret_cast<float *>(end), nullptr};
    }
    __device__ static void begin(const Room &, const Norm &, int) {}

    // A thread's channels, and where they are.
    struct Asked {
        int block, offset;
        bool is_there;
        uint4 read[PARTS];
    };

    __device__ static Asked ask(const unsigned char *row, int depth) {
        const int lane = threadIdx.x % 32, block = threadIdx.x / 32 + lane / LANES * WARPS;
        const int offset = lane % LANES * EIGHT;
        Asked asked = {block, offset, block < depth / BLOCK, {}};
        if (asked.is_there) {
            const unsigned char *const from =
                row + (block * BLOCK + offset) * (int)sizeof(__nv_bfloat16);
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                asked.read[i] = read_row(from + i * LANES * sizeof(uint4));
            }
        }
        return asked;
    }

    __device__ static void run(const Room &room, const Asked &asked, const Norm &, int) {
        const auto &[block, offset, is_there, read] = asked;
        unsigned pair = 0;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const unsigned low = larger_pair(read[i].x, read[i].y);
            const unsigned high = larger_pair(read[i].z, read[i].w);
            pair = i ? larger_pair(pair, larger_pair(low, high)) : larger_pair(low, high);
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            pair = larger_pair(pair, __shfl_xor_sync(ALL, pair, step));
        }
        if (!is_there) return;
        const float amax =
            fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xffff0000u)));
        const unsigned exponent = scale_exponent(amax);
        const float factor = power_of_two(254 - exponent);
        unsigned char *const to = room.codes + place(block) + offset;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            float x[EIGHT];
            widen(x, read[i]);
            write_codes(to + i * LANES * EIGHT, x, factor);
        }
        if (offset == 0) room.scales[block] = power_of_two(exponent);
    }
};

// Norms a row of a multiple of 512 channels, then rounds it. A thread has the channels that it has
// in `norm_rows`: eight of each half of the row.
struct Norming {
    static constexpr int MOST = WARPS * 32 * 2 * EIGHT;
    static constexpr bool KEEPS_WARPS_APART = false;

    static int bytes(int depth) {
        return depth + (depth / BLOCK + depth + WARPS) * (int)sizeof(float);
    }
    __device__ static int place(int block) { return block * BLOCK; }
    __device__ static Room room(unsigned char *shared, int depth) {
        // The norm's weight, then the sums of warps, both in whole 16 bytes.
        float *const more = reinterpret_cast<float *>(shared + depth);
        return {shared, more + depth + WARPS, more};
    }
    // Ask for the norm's weight, which nobody writes.
    __device__ static void begin(const Room &room, const Norm &norm, int depth) {
#pragma unroll 1
        for (int at = threadIdx.x * 4; at < depth; at += WARPS * 32 * 4) {
            copy_ahead(room.more + at, norm.weight + at);
        }
    }

    // A thread's channels, the first ones and those half a row further on; whole warps have none.
    struct Asked {
        int low, high;
        bool has_channels;
        uint4 read[2];
    };

    __device__ static Asked ask(const unsigned char *row, int depth) {
        const int low = threadIdx.x * EIGHT, high = low + depth / 2;
        Asked asked = {low, high, low < depth / 2, {}};
        if (asked.has_channels) {
            asked.read[0] = read_row(row + low * (int)sizeof(__nv_bfloat16));
            asked.read[1] = read_row(row + high * (int)sizeof(__nv_bfloat16));
        }
        return asked;
    }

    __device__ static void run(const Room &room, const Asked &asked, const Norm &norm, int depth) {
        const auto &[low, high, has_channels, read] = asked;
        float *const sums = room.more + depth;
        const float sum = has_channels ? squares(read) : 0.0f;
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        await_copies();
        __syncthreads();
        if (!has_channels) return;
        const float factor = rsqrtf(fmaf(total(sums), norm.per_channel, norm.eps));
        float x[2][EIGHT], amax[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            widen(x[half], read[half]);
            float gain[EIGHT];
            read_eight(gain, room.more + (half ? high : low));
#pragma unroll
            for (int j = 0; j < EIGHT; j++) {
                x[half][j] *= factor * gain[j];
                amax[half] = fmaxf(amax[half], fabsf(x[half][j]));
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int channel = half ? high : low;
            const unsigned exponent =
                scale_exponent(largest_of_lanes<BLOCK / EIGHT>(amax[half]));
            write_codes(room.codes + channel, x[half], power_of_two(254 - exponent));
            if (channel % BLOCK == 0) room.scales[channel / BLOCK] = power_of_two(exponent);
        }
    }

private:
    // The sum of a warp's squares.
    __device__ static float squares(const uint4 (&read)[2]) {
        float sum = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x[EIGHT];
            widen(x, read[half]);
#pragma unroll
            for (int j = 0; j < EIGHT; j++) sum = fmaf(x[j], x[j], sum);
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
        return sum;
    }
    __device__ static float total(const float *sums) {
        float x[WARPS];
        read_eight(x, sums);
        return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    }
};
