// What a call is, and what lies where in a block's shared memory.
#pragma once

#include "hopper.cuh"

// Heads and keys of a tile, channels of a record, and of a chunk of it: 128 bytes of bfloat16.
constexpr int HEADS = 64, KEYS = 64, WIDTH = 512, CHUNK = 64, CHUNKS = WIDTH / CHUNK;
// Blocks of a cluster, a team; each takes a tile of keys at a time, and two chunks of the sums.
constexpr int TEAM = 4, OWN = CHUNKS / TEAM;
constexpr int MOST_TEAMS = 32;  // of a row
constexpr int THREADS = 256;    // two groups of four warps, a chunk of the sums each

// Numbers that products take: 64 lines of 128 bytes, swizzled.
using Tile = __nv_bfloat16[64 * CHUNK];
constexpr int TILE_BYTES = sizeof(Tile);

// Keys of all rows in one pool. Without `lengths` rows have `columns` slots, -1 where there is no
// key; without columns there is no such set.
struct Keys {
    const unsigned char *pages;
    const int *slots, *lengths;
    long long slots_stride, page_bytes;
    int columns, page_rows;
};

// q, out    [rows, heads, 512], a row of q at multiples of `q_stride` numbers
// partials  [rows, teams, TEAM, 2048, 4] means of what teams attend, where there are several; for
//           their order see `results.cuh`
// sums      [rows, 64, teams] binary logarithms of their sums of weights
// scale     of scores, for powers of two
struct Call {
    Keys window, extra;
    const __nv_bfloat16 *q;
    const float *sink;
    __nv_bfloat16 *out;
    float4 *partials;
    float *sums;
    long long q_stride;
    float scale;
    int heads, teams;
};

// What a tile's block sends to the others of the team: weights relative to the greatest score.
struct Weights {
    Tile p;  // by head
    float greatest[HEADS], total[HEADS];
};
constexpr int WEIGHTS_BYTES = sizeof(Weights);

struct Shared {
    Tile queries[CHUNKS], keys[CHUNKS];
    Tile values[TEAM - 1][OWN];  // of the others' keys, those channels that are this block's
    struct alignas(1024) {
        Weights weights;
    } team[TEAM];
    float found[KEYS];  // 1 where there is a key, else 0
    unsigned long long filled;
};
static_assert(sizeof(Shared) <= 227 * 1024);

// What all blocks of a row know of it: first as if it filled all columns and each block took one
// tile, then by its lengths.
struct Row {
    long long nth;
    int window_count, extra_count, window_tiles, tiles;
    int each = 1;   // tiles that a block takes, one after the other
    int teams = 1;  // that take tiles; at least one, which writes zeros if there is no key

    __device__ Row(const Call &call, long long nth) : nth(nth) {
        count(call.window.columns, call.extra.columns);
    }

    // Take the row's lengths; return whether each block's first tile is what it was.
    __device__ bool take(const Call &call, int window, int extra) {
        const int window_before = window_tiles;
        count(max(0, min(window, call.window.columns)), max(0, min(extra, call.extra.columns)));
        const int most = call.teams * TEAM;
        if (tiles <= most) {
            teams = max(1, (tiles + TEAM - 1) / TEAM);
            return window_tiles == window_before;
        }
        each = (tiles + most - 1) / most;
        teams = (tiles + each * TEAM - 1) / (each * TEAM);
        return false;
    }

    __device__ void count(int window, int extra) {
        window_count = window;
        extra_count = extra;
        window_tiles = (window + KEYS - 1) / KEYS;
        tiles = window_tiles + (extra + KEYS - 1) / KEYS;
    }

    // Ask for a length: what is made of it must wait until all else has been asked for.
    __device__ int length_of(const Keys &keys) const {
        return keys.lengths ? read_int(keys.lengths + nth) : keys.columns;
    }
};
