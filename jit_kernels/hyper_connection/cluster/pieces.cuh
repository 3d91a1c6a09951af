// Few tokens, first launch: a block multiplies some pieces of the channels of some tokens by `fn`.
//
// A piece is what one multiplier of a cluster adds up, and sums are added up in the same order: a
// token has the bits that clusters give it. Warps go through units of a few tiles and pieces; of a
// unit one has the squares, and each of the others eight lines of `fn`. What a unit needs comes
// while those before it are multiplied; `fn`, which no launch before writes, is there before.
#pragma once

#include "multiply.cuh"
#include "wide.cuh"

// Most tokens, and pieces of the channels.
constexpr int FEW = 256, PIECES = MAX_RANKS * MULTIPLIERS;
// Numbers of a token that are handed over for some pieces: sums, and zeros that fill up a line of
// the cache.
constexpr int SENT = 32;
constexpr int PIECE_WARPS = 8, PIECE_THREADS = PIECE_WARPS * 32;

// 4,096 channels: a piece is 32 of each stream.
struct Narrow {
    static constexpr int WIDTH = SLICE * MAX_RANKS, BLOCK = SLICE;
    // Products of 16 channels each, so many of a stream; sums of a line, which they take in turn.
    static constexpr int PRODUCTS = STREAMS * STEPS, RUN = STEPS, CHAINS = ::CHAINS;
    // Pieces and tiles of a unit; pieces of a block, at most, and its tokens.
    static constexpr int PAIR = 2, TILES = 1, MOST = 4, SPAN = 64;
    // Of a thread of the second launch.
    static constexpr int TOKEN_REGISTERS = 64;

    static __device__ int stream(int, int product) { return product / RUN; }
    static __device__ int channel(int piece, int product) {
        return piece * PIECE + product % RUN * 16;
    }
    // Of a token's 16 bytes side by side, stream by stream: the piece and the product they are for.
    static __device__ int piece_of(int chunk) { return chunk / (2 * RUN) % PAIR; }
    static __device__ int product_of(int chunk) {
        return chunk / (2 * RUN * PAIR) * RUN + chunk % (2 * RUN) / 2;
    }
};

// 7,168 channels: a piece is 224 of one stream.
struct Broad {
    static constexpr int WIDTH = WIDE * MAX_RANKS, BLOCK = WIDE;
    static constexpr int PRODUCTS = WIDE_STEPS, CHAINS = 1;
    static constexpr int PAIR = 1, TILES = 4, MOST = 1, SPAN = 128;
    static constexpr int TOKEN_REGISTERS = 96;

    static __device__ int stream(int piece, int) { return piece % STREAMS; }
    static __device__ int channel(int piece, int product) {
        return piece / STREAMS * (WIDE / 2) + product * 16;
    }
    static __device__ int piece_of(int) { return 0; }
    static __device__ int product_of(int chunk) { return chunk / 2; }
};
static_assert(Narrow::PRODUCTS % 2 == 0 && Broad::PRODUCTS % 2 == 0);

// Pieces of a block: more where there are many tokens, so that all blocks run at once.
template <class Shape>
__host__ __device__ inline int pieces_of_block(int tokens) {
    return tokens > FEW / 2 ? Shape::MOST : Shape::PAIR;
}

template <class Shape, int EIGHTS>
struct PieceMemory {
    static constexpr int UNIT = Shape::TILES * TOKENS, SIDE = Shape::SPAN / UNIT;
    static constexpr int UNITS = Shape::MOST / Shape::PAIR * SIDE;
    // Tokens begin an odd multiple of 16 bytes apart: those of a matrix are read without conflict.
    static constexpr int PART = Shape::PRODUCTS * 32, TOKEN = Shape::PAIR * PART + 16;
    // What lanes take for products: of two and two channels of a line one of the parts.
    uint2 weights[Shape::MOST][Shape::PRODUCTS][EIGHTS][PARTS][32];
    unsigned char tokens[UNITS][UNIT * TOKEN];
    unsigned long long there[UNITS];
};

// The numbers of `fn` that meet a product's channels in the `line`th line.
template <class Shape>
__device__ inline const float *row_of(const Call &call, int piece, int product, int line) {
    const long long row = line * STREAMS + Shape::stream(piece, product);
    return call.fn + row * Shape::WIDTH + Shape::channel(piece, product);
}

// Read two numbers of a weight, or zeros; not as constant, which might come after a wait.
__device__ inline float2 read_weight(const float *from, bool reads) {
    float2 value;
    asm volatile(
        "{\n"
        ".reg .pred reads;\n"
        "setp.ne.b32 reads, %3, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "@reads ld.global.v2.f32 {%0, %1}, [%2];\n"
        "}"
        : "=&f"(value.x), "=&f"(value.y)
        : "l"(from), "r"((int)reads)
        : "memory");
    return value;
}

// Split pieces of `fn` into parts; the whole block, a warp every eighth product.
template <class Shape, int EIGHTS>
__device__ inline void keep_weights(const Call &call, int piece, int pieces, int warp,
                                    PieceMemory<Shape, EIGHTS> &memory) {
    constexpr int ROWS = EIGHTS == 1 ? STREAMS : LINES, STEP = 2;
    const int lane = threadIdx.x % 32, count = pieces * Shape::PRODUCTS;
#pragma unroll 1
    for (int begin = warp; begin < count; begin += STEP * PIECE_WARPS) {
        float2 asked[STEP][EIGHTS][2];
#pragma unroll
        for (int i = 0; i < STEP * EIGHTS * 2; i++) {
            const int nth = begin + i / (EIGHTS * 2) * PIECE_WARPS, eight = i / 2 % EIGHTS;
            const float *const from = row_of<Shape>(call, piece + nth / Shape::PRODUCTS,
                                                    nth % Shape::PRODUCTS, eight * 8 + lane / 4);
            asked[i / (EIGHTS * 2)][eight][i % 2] = read_weight(
                from + lane % 4 * 2 + i % 2 * 8, nth < count && eight * 8 + lane / 4 < ROWS);
        }
#pragma unroll
        for (int i = 0; i < STEP * EIGHTS; i++) {
            const int nth = begin + i / EIGHTS * PIECE_WARPS, eight = i % EIGHTS;
            if (nth >= count) break;
            const float2(&f)[2] = asked[i / EIGHTS][eight];
            unsigned near[PARTS], far[PARTS];
            split_pair(f[0], near);
            split_pair(f[1], far);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                (&memory.weights[0][0])[nth][eight][p][lane] = {near[p], far[p]};
            }
        }
    }
}

// Copy a unit's tokens into shared memory without waiting; the whole block, a lane the same 16
// bytes of each token. What is beyond the last token stays as it is.
template <class Shape, class Memory>
__device__ inline void fetch_unit(const Call &call, int piece, int first, int warp,
                                  unsigned char *to) {
    constexpr int CHUNKS = Shape::PAIR * Shape::PRODUCTS * 2;
    static_assert(CHUNKS <= 32 && CHUNKS > 16);
    const int chunk = threadIdx.x % 32;
    const int nth = Shape::piece_of(chunk), product = Shape::product_of(chunk);
    const __nv_bfloat16 *from = call.streams + (first + warp) * call.token_stride +
                                Shape::stream(piece + nth, product) * call.stream_stride +
                                Shape::channel(piece + nth, product) + chunk % 2 * 8;
    const int live = chunk < CHUNKS ? call.tokens - first - warp : 0;
    to += warp * Memory::TOKEN + nth * Memory::PART + product * 32 + chunk % 2 * 16;
#pragma unroll
    for (int i = 0; i < Memory::UNIT; i += PIECE_WARPS) {
        copy_if(to + i * Memory::TOKEN, from, i < live);
        from += PIECE_WARPS * call.token_stride;
    }
}

// Where a warp finds the matrices of a tile: lanes name rows 0 to 15 of the first eight channels,
// then of the second.
template <class Memory>
__device__ inline const unsigned char *tile_of(const unsigned char *tokens, int tile) {
    const int lane = threadIdx.x % 32;
    return tokens + (tile * TOKENS + lane % 16) * Memory::TOKEN + lane / 16 * 16;
}

// Where a row of a tile hands over its sums of some pieces, or nowhere.
template <class Shape>
__device__ inline float *sums_of(const Call &call, int place, int token) {
    if (token >= call.tokens) return nullptr;
    return call.sums + ((long long)token * (PIECES / Shape::PAIR) + place) * SENT;
}

// Hand over a unit's sums of eight lines, those of chains and then those of pieces added up.
template <class Shape>
__device__ inline void hand_over(
    const Call &call, int place, int first, int eight,
    const float (&sums)[Shape::TILES][Shape::PAIR][Shape::CHAINS][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < Shape::TILES * 2; row++) {
        float2 all;
#pragma unroll
        for (int piece = 0; piece < Shape::PAIR; piece++) {
            float2 sum = {0.0f, 0.0f};
#pragma unroll
            for (int chain = 0; chain < Shape::CHAINS; chain++) {
                const float *const mine = &sums[row / 2][piece][chain][row % 2 * 2];
                sum = chain ? make_float2(sum.x + mine[0], sum.y + mine[1])
                            : make_float2(mine[0], mine[1]);
            }
            all = piece ? make_float2(all.x + sum.x, all.y + sum.y) : sum;
        }
        float *const to = sums_of<Shape>(call, place, first + row * 8 + lane / 4);
        if (to) *reinterpret_cast<float2 *>(to + eight * 8 + lane % 4 * 2) = all;
    }
}

// Multiply a unit's pieces by eight lines of `fn`; `weights` are those of its first piece.
template <class Shape, int EIGHTS, class Memory>
__device__ inline void multiply_unit(const Call &call, int place, int first, int eight,
                                     const uint2 (*weights)[Shape::PRODUCTS][EIGHTS][PARTS][32],
                                     const unsigned char *tokens) {
    constexpr int CHAINS = Shape::CHAINS, TILES = Shape::TILES, PAIR = Shape::PAIR;
    constexpr int SERIES = TILES * PAIR * CHAINS;
    const int lane = threadIdx.x % 32;
    float sums[TILES][PAIR][CHAINS][4] = {};
#pragma unroll 1
    for (int product = 0; product < Shape::PRODUCTS; product += CHAINS) {
        unsigned x[SERIES][4];
#pragma unroll
        for (int i = 0; i < SERIES; i++) {
            const int chain = i % CHAINS, piece = i / CHAINS % PAIR, tile = i / (CHAINS * PAIR);
            load_matrices(x[i], tile_of<Memory>(tokens, tile) + piece * Memory::PART +
                                    (product + chain) * 32);
        }
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--) {
#pragma unroll
            for (int i = 0; i < SERIES; i++) {
                const int chain = i % CHAINS, piece = i / CHAINS % PAIR, tile = i / (CHAINS * PAIR);
                const uint2 pairs = weights[piece][product + chain][eight][p][lane];
                multiply(sums[tile][piece][chain], x[i], {pairs.x, pairs.y});
            }
        }
    }
    hand_over<Shape>(call, place, first, eight, sums);
}

// Add up the squares of a unit.
template <class Shape, class Memory>
__device__ inline void square_unit(const Call &call, int place, int first,
                                   const unsigned char *tokens) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int tile = 0; tile < Shape::TILES; tile++) {
        float squares[Shape::PAIR][2] = {};
#pragma unroll 2
        for (int product = 0; product < Shape::PRODUCTS; product++) {
#pragma unroll
            for (int piece = 0; piece < Shape::PAIR; piece++) {
                unsigned x[4];
                load_matrices(x, tile_of<Memory>(tokens, tile) + piece * Memory::PART +
                                     product * 32);
                add_squares(squares[piece], x);
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            // Four lanes have a row's channels.
#pragma unroll
            for (int piece = 0; piece < Shape::PAIR; piece++) {
                float &square = squares[piece][row];
                square += __shfl_xor_sync(ALL, square, 1);
                square += __shfl_xor_sync(ALL, square, 2);
            }
            if (Shape::PAIR == 2) squares[0][row] += squares[Shape::PAIR - 1][row];
            float *const to =
                sums_of<Shape>(call, place, first + tile * TOKENS + row * 8 + lane / 4);
            if (to) to[LINES + lane % 4] = lane % 4 ? 0.0f : squares[0][row];
        }
    }
}

template <class Shape, int EIGHTS>
__device__ inline void run_pieces(const Call &call, PieceMemory<Shape, EIGHTS> &memory) {
    using Memory = PieceMemory<Shape, EIGHTS>;
    // Warps of a unit, and units at once.
    constexpr int ROLES = EIGHTS + 1, AT_ONCE = PIECE_WARPS / ROLES, PAIR = Shape::PAIR;
    const int warp = warp_number(), pieces = pieces_of_block<Shape>(call.tokens);
    const int groups = PIECES / pieces, piece = blockIdx.x % groups * pieces;
    const int start = blockIdx.x / groups * Shape::SPAN, units = pieces / PAIR * Memory::SIDE;
    const auto first_of = [&](int unit) { return start + unit % Memory::SIDE * Memory::UNIT; };
    if (threadIdx.x < Memory::UNITS) make_barrier(&memory.there[threadIdx.x], PIECE_THREADS);
    keep_weights(call, piece, pieces, warp, memory);
    __syncthreads();
    await_launch_before();
#pragma unroll 1
    for (int unit = 0; unit < units; unit++) {
        if (first_of(unit) >= call.tokens) continue;
        fetch_unit<Shape, Memory>(call, piece + unit / Memory::SIDE * PAIR, first_of(unit), warp,
                                  memory.tokens[unit]);
        arrive_with_copies(&memory.there[unit]);
    }
    let_next_begin();
    // Each turn a warp has another role: a multiprocessor's four parts share the products.
#pragma unroll 1
    for (int unit = warp / ROLES, role = warp + unit; unit < units; unit += AT_ONCE, role++) {
        const int first = first_of(unit), nth = unit / Memory::SIDE, eight = role % ROLES;
        if (first >= call.tokens) continue;
        await_own_phase(&memory.there[unit], 0);
        if (eight < EIGHTS) {
            multiply_unit<Shape, EIGHTS, Memory>(call, piece / PAIR + nth, first, eight,
                                                 memory.weights + nth * PAIR, memory.tokens[unit]);
        } else {
            square_unit<Shape, Memory>(call, piece / PAIR + nth, first, memory.tokens[unit]);
        }
    }
}
