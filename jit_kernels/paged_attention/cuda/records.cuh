// Packed records, 448 e4m3 codes with a scale for each 64 and 64 bfloat16 numbers, on their way
// into tiles. A warp takes eight of a tile's keys, four lanes each.
#pragma once

#include "layout.cuh"

constexpr int RECORD_BYTES = 576, SCALE_BYTES = 8, CODE_BLOCKS = 7;
constexpr int PIECES = RECORD_BYTES / 64;  // of 64 bytes, 16 for each lane

// Where the slot of a lane's key stands.
struct Place {
    Keys keys;
    int column, count;

    __device__ Place(const Call &call, const Row &row, int tile, int key) {
        const bool in_window = tile < row.window_tiles;
        keys = in_window ? call.window : call.extra;
        count = in_window ? row.window_count : row.extra_count;
        column = (in_window ? tile : tile - row.window_tiles) * KEYS + key;
    }

    // The slot; -1: there is no key.
    __device__ int slot(long long nth) const {
        return column < count ? read_int(keys.slots + nth * keys.slots_stride + column) : -1;
    }
};

// Two neighbouring codes as bfloat16 numbers 2^-120 as large: the first two bytes of a word, or the
// last. The fields of a code are put where those of the number are.
template <bool LAST>
__device__ inline unsigned tiny_pair(unsigned word) {
    const unsigned high = __byte_perm(word, 0, LAST ? 0x3424 : 0x1404);
    return (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
}

// Multiply pairs of bfloat16 numbers, each a power of two times a code: nothing is rounded.
__device__ inline unsigned times(unsigned a, unsigned b) {
    unsigned c;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ inline uint4 eight_numbers(unsigned low, unsigned high, unsigned scale) {
    constexpr unsigned two_to_120 = 0x7b807b80u;
    return make_uint4(times(times(tiny_pair<false>(low), two_to_120), scale),
                      times(times(tiny_pair<true>(low), two_to_120), scale),
                      times(times(tiny_pair<false>(high), two_to_120), scale),
                      times(times(tiny_pair<true>(high), two_to_120), scale));
}

// A quarter of a key's record, in registers: 16 bytes of each piece.
struct Record {
    uint4 pieces[PIECES];
    uint2 scales;

    // Ask for it. Without a key all is zero: so is the product with a weight of zero.
    __device__ Record(const Keys &keys, int slot, int quarter) {
        if (slot < 0) {
#pragma unroll
            for (uint4 &piece : pieces) piece = make_uint4(0, 0, 0, 0);
            scales = make_uint2(0, 0);
            return;
        }
        const unsigned page = (unsigned)slot / (unsigned)keys.page_rows;
        const unsigned line = (unsigned)slot - page * (unsigned)keys.page_rows;
        const unsigned char *const start = keys.pages + page * keys.page_bytes;
        const unsigned char *const from = start + line * RECORD_BYTES + quarter * 16;
#pragma unroll
        for (int i = 0; i < PIECES; i++) pieces[i] = read_16(from + i * 64);
        scales = read_8(start + keys.page_rows * RECORD_BYTES + line * SCALE_BYTES);
    }

    // Keep the compiler from waiting for it any earlier.
    __device__ void pin() {
#pragma unroll
        for (uint4 &piece : pieces) {
            asm volatile("" : "+r"(piece.x), "+r"(piece.y), "+r"(piece.z), "+r"(piece.w)::"memory");
        }
        asm volatile("" : "+r"(scales.x), "+r"(scales.y)::"memory");
    }

    // Write four of its eight chunks into their tiles.
    template <bool LAST>
    __device__ void place(Tile *chunks, int key, int quarter) const {
        constexpr int FIRST = LAST ? CHUNKS / 2 : 0;
#pragma unroll
        for (int i = FIRST; i < FIRST + CHUNKS / 2; i++) {
            if (i == CODE_BLOCKS) {
                write(chunks[i], key, quarter, pieces[i]);
                write(chunks[i], key, quarter + 4, pieces[i + 1]);
                continue;
            }
            const unsigned exponent = (LAST ? scales.y : scales.x) >> i % 4 * 8 & 0xff;
            const unsigned scale = exponent * (0x10001u << 7);
            const uint4 piece = pieces[i];
            write(chunks[i], key, quarter * 2, eight_numbers(piece.x, piece.y, scale));
            write(chunks[i], key, quarter * 2 + 1, eight_numbers(piece.z, piece.w, scale));
        }
    }

    __device__ static void write(Tile &tile, int line, int sixteenth, uint4 numbers) {
        *reinterpret_cast<uint4 *>(tile + line * CHUNK + (sixteenth ^ line % 8) * 8) = numbers;
    }
};

// Ask for a row's queries, zeros for the heads after the first `heads`. No branch leads past this:
// at one the compiler would wait for what was asked for before.
__device__ inline void ask_queries(const Call &call, const Row &row, Shared &shared, int heads) {
    constexpr int LINE = WIDTH / 8, STEP = THREADS / LINE;  // in 16 bytes, in heads
    static_assert(STEP <= 4, "a head is its first one plus one of these, its bits xor theirs");
    const int first = threadIdx.x / LINE, at = threadIdx.x % LINE;
    const __nv_bfloat16 *const q = call.q + row.nth * call.q_stride + first * WIDTH + at * 8;
    __nv_bfloat16 *const to = shared.queries[at / 8] + first * CHUNK;
#pragma unroll
    for (int i = 0; i < HEADS; i += STEP) {
        copy_or_clear(to + i * CHUNK + ((at % 8 ^ first) ^ i % 8) * 8, q + i * WIDTH,
                      i + first < heads);
    }
}
