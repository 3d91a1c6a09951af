// Packed records, 448 e4m3 codes with a scale for each 64 and 64 bfloat16 numbers, on their way
// into tiles. A warp takes sixteen of a tile's keys, four lanes each, eight keys at a time.
#pragma once

#include "layout.cuh"

constexpr int RECORD_BYTES = 576, SCALE_BYTES = 8, CODE_BLOCKS = 7;
constexpr int PIECES = RECORD_BYTES / 64;  // of 64 bytes, 16 for each lane

// Where the slots of a tile stand.
struct Place {
    Keys keys;
    int column, count;

    __device__ Place(const Call &call, const Row &row, int tile) {
        const bool in_window = tile < row.window_tiles;
        keys = in_window ? call.window : call.extra;
        count = in_window ? row.window_count : row.extra_count;
        column = (in_window ? tile : tile - row.window_tiles) * KEYS;
    }

    __device__ bool has(int key) const { return column + key < count; }

    // The slot of a key; -1: there is none.
    __device__ int slot(long long nth, int key) const {
        return has(key) ? read_int(keys.slots + nth * keys.slots_stride + column + key) : -1;
    }
};

// Two neighbouring codes as bfloat16 numbers 2^-120 as large: the first two bytes of a word, or the
// last. The fields of a code are put where those of the number are.
template <bool LAST>
__device__ inline unsigned tiny_pair(unsigned word) {
    const unsigned high = __byte_perm(word, 0, LAST ? 0x3424 : 0x1404);
    return (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
}

// Eight codes times a power of two, a pair of bfloat16 numbers: nothing is rounded.
__device__ inline uint4 eight_numbers(unsigned low, unsigned high, unsigned scale) {
    constexpr unsigned two_to_120 = 0x7b807b80u;
    return make_uint4(times(times(tiny_pair<false>(low), two_to_120), scale),
                      times(times(tiny_pair<true>(low), two_to_120), scale),
                      times(times(tiny_pair<false>(high), two_to_120), scale),
                      times(times(tiny_pair<true>(high), two_to_120), scale));
}

// One of the eight 16-byte parts of a line of a tile.
__device__ inline uint4 &in_tile(Tile &tile, unsigned line, unsigned sixteenth) {
    return *reinterpret_cast<uint4 *>(tile + line * CHUNK + (sixteenth ^ line % 8) * 8);
}

// A lane's quarter of a key's record: 16 bytes of each piece. Codes come to where the first half of
// their numbers will be, the rest to its place. Without a key all is zero: so is the product with a
// weight of zero.
struct Record {
    unsigned key, quarter;
    bool found;
    uint2 scales;

    __device__ Record(const Keys &keys, Shared &shared, int slot, unsigned key, unsigned quarter)
        : key(key), quarter(quarter), found(slot >= 0) {
        const unsigned known = found ? slot : 0;
        const unsigned page = keys.page_of(known);
        const unsigned line = known - page * (unsigned)keys.page_rows;
        const unsigned char *const start = keys.pages + page * keys.page_bytes;
        const unsigned char *const from = start + line * RECORD_BYTES + quarter * 16;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const int chunk = min(i, CODE_BLOCKS);
            const unsigned at = i < CODE_BLOCKS ? quarter * 2 : quarter + (i - CODE_BLOCKS) * 4;
            copy_or_clear(&in_tile(shared.keys[chunk], key, at), from + i * 64, found);
        }
        scales = read_8(start + keys.page_rows * RECORD_BYTES + line * SCALE_BYTES);
        if (!quarter) shared.bias[key] = found ? 0.0f : minus_infinity();
    }

    __device__ void take_scales() {
        if (!found) scales = make_uint2(0, 0);
    }

    // Write the numbers of a chunk's codes, whose scale is the first, and go on to the next.
    __device__ void decode(Tile &tile) {
        const uint4 codes = in_tile(tile, key, quarter * 2);
        const unsigned scale = (scales.x & 0xff) * (0x10001u << 7);
        scales = make_uint2(__byte_perm(scales.x, scales.y, 0x4321), scales.y >> 8);
        in_tile(tile, key, quarter * 2) = eight_numbers(codes.x, codes.y, scale);
        in_tile(tile, key, quarter * 2 + 1) = eight_numbers(codes.z, codes.w, scale);
    }
};

// Ask for a row's queries, zeros for heads that it has not: the first group of warps.
__device__ inline void ask_queries(const Call &call, const Row &row, Shared &shared) {
    constexpr int LINE = WIDTH / 8, STEP = GROUP / LINE, AT_ONCE = 8 / STEP;  // in 16 bytes, heads
    const unsigned first = threadIdx.x / LINE, at = threadIdx.x % LINE;
    const __nv_bfloat16 *from = call.q + row.nth * call.q_stride + first * WIDTH + at * 8;
#pragma unroll 1
    for (unsigned head = first; head < HEADS; head += AT_ONCE * STEP) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const unsigned line = head + i * STEP;
            copy_or_clear(&in_tile(shared.queries[at / 8], line, at % 8), from + i * STEP * WIDTH,
                          line < (unsigned)call.heads);
        }
        from += AT_ONCE * STEP * WIDTH;
    }
}
