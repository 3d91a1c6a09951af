// Few tokens, first launch: a block multiplies one piece of the channels of all tokens by `fn`.
//
// A piece is what one multiplier of a cluster adds up, and it is added up in the same order: a
// token has the bits that clusters give it. A warp has a tile of 16 tokens, or two.
#pragma once

#include "multiply.cuh"
#include "wide.cuh"

// Most tokens: so many blocks of the second launch fit beside those of the first, two a
// multiprocessor; of 7,168 channels and more than 130 tokens the second of two comes when the first
// launch's block has left.
constexpr int FEW = 256, PIECES = MAX_RANKS * MULTIPLIERS;
// Numbers of a token and piece: its sums, and zeros that fill up a line of the cache.
constexpr int SENT = 32;
constexpr int PIECE_WARPS = 8, PIECE_THREADS = PIECE_WARPS * 32;
static_assert(FEW == 2 * PIECE_WARPS * TOKENS);

// 4,096 channels: a piece is 32 of each stream. Of `fn` the least parts are multiplied first.
struct Narrow {
    static constexpr int WIDTH = SLICE * MAX_RANKS, BLOCK = SLICE;
    // Products of 16 channels each, so many of a stream; sums of a line, which they take in turn.
    static constexpr int PRODUCTS = STREAMS * STEPS, RUN = STEPS, CHAINS = ::CHAINS;
    static constexpr bool LEAST_FIRST = true;
    // Of a thread of the second launch.
    static constexpr int TOKEN_REGISTERS = 48;

    static __device__ int stream(int, int product) { return product / RUN; }
    static __device__ int channel(int piece, int product) {
        return piece * PIECE + product % RUN * 16;
    }
};

// 7,168 channels: a piece is 224 of one stream. Of `fn` the highest parts are multiplied first.
struct Broad {
    static constexpr int WIDTH = WIDE * MAX_RANKS, BLOCK = WIDE;
    static constexpr int PRODUCTS = WIDE_STEPS, CHAINS = 1;
    static constexpr bool LEAST_FIRST = false;
    static constexpr int TOKEN_REGISTERS = 72;

    static __device__ int stream(int piece, int) { return piece % STREAMS; }
    static __device__ int channel(int piece, int product) {
        return piece / STREAMS * (WIDE / 2) + product * 16;
    }
};
static_assert(Narrow::PRODUCTS % 2 == 0 && Broad::PRODUCTS % 2 == 0);

template <class Shape, int EIGHTS>
struct PieceMemory {
    // Tokens begin an odd multiple of 16 bytes apart: those of a matrix are read without conflict.
    static constexpr int TOKEN = Shape::PRODUCTS * 32 + 16;
    // What lanes take for products: of two and two channels of a line one of three parts.
    uint2 weights[Shape::PRODUCTS][EIGHTS][3][32];
    unsigned char tokens[FEW * TOKEN];

    // As much of it as some tokens need.
    static int bytes(int tokens) {
        const int tiles = (tokens + TOKENS - 1) / TOKENS;
        return sizeof(weights) + tiles * TOKENS * TOKEN;
    }
};

// The numbers of `fn` that meet a product's channels in the `line`th line.
template <class Shape>
__device__ inline const float *row_of(const Call &call, int piece, int product, int line) {
    const long long row = line * STREAMS + Shape::stream(piece, product);
    return call.fn + row * Shape::WIDTH + Shape::channel(piece, product);
}

// Ask the cache for a block's part of `fn`, a thread one line of memory; the launch before need not
// have ended.
template <class Shape, int EIGHTS>
__device__ inline void ask_for_piece(const Call &call, int piece) {
    constexpr int ROWS = EIGHTS == 1 ? STREAMS : LINES, EACH = Shape::PRODUCTS / 2;
    static_assert(ROWS * EACH <= PIECE_THREADS);
    const int line = threadIdx.x / EACH, product = threadIdx.x % EACH * 2;
    if (line < ROWS) ask_cache(row_of<Shape>(call, piece, product, line));
}

// Copy a piece of a tile's tokens into shared memory without waiting; a warp, of which a lane has
// the same 16 bytes of each token. What is beyond the last token stays as it is.
template <class Shape, int TOKEN>
__device__ inline void fetch_piece(const Call &call, int piece, int first, unsigned char *to) {
    constexpr int CHUNKS = Shape::PRODUCTS * 2, AT_ONCE = 32 / CHUNKS;
    const int lane = threadIdx.x % 32, chunk = lane % CHUNKS, own = lane / CHUNKS;
    const __nv_bfloat16 *from = call.streams + (first + own) * call.token_stride +
                                Shape::stream(piece, chunk / 2) * call.stream_stride +
                                Shape::channel(piece, chunk / 2) + chunk % 2 * 8;
    const int live = own < AT_ONCE ? call.tokens - first - own : 0;
    to += own * TOKEN + chunk * 16;
#pragma unroll 8
    for (int i = 0; i < TOKENS; i += AT_ONCE) {
        copy_if(to + i * TOKEN, from, i < live);
        from += AT_ONCE * call.token_stride;
    }
}

// Split a piece of `fn` into three parts; the whole block, a warp every eighth product. When all of
// it is asked for, the next launch may begin: what it reads then was there before this one.
template <class Shape, int EIGHTS>
__device__ inline void keep_weights(const Call &call, int piece, PieceMemory<Shape, EIGHTS> &memory,
                                    int warp) {
    constexpr int ROWS = EIGHTS == 1 ? STREAMS : LINES;
    constexpr int MINE = (Shape::PRODUCTS + PIECE_WARPS - 1) / PIECE_WARPS;
    const int lane = threadIdx.x % 32;
    float2 asked[MINE][EIGHTS][2];
#pragma unroll
    for (int i = 0; i < MINE * EIGHTS * 2; i++) {
        const int product = warp + i / (EIGHTS * 2) * PIECE_WARPS, eight = i / 2 % EIGHTS;
        const float *const from = row_of<Shape>(call, piece, product, eight * 8 + lane / 4);
        asked[i / (EIGHTS * 2)][eight][i % 2] =
            read_or_zero(from + lane % 4 * 2 + i % 2 * 8,
                         product < Shape::PRODUCTS && eight * 8 + lane / 4 < ROWS);
    }
    let_next_begin();
#pragma unroll
    for (int i = 0; i < MINE * EIGHTS; i++) {
        const int product = warp + i / EIGHTS * PIECE_WARPS, eight = i % EIGHTS;
        if (product >= Shape::PRODUCTS) break;
        float2(&f)[2] = asked[i / EIGHTS][eight];
#pragma unroll
        for (int p = 0; p < 3; p++) {
            unsigned pairs[2];
#pragma unroll
            for (int word = 0; word < 2; word++) {
                pairs[word] = pack(f[word].x, f[word].y);
                f[word].x -= low_of(pairs[word]);
                f[word].y -= high_of(pairs[word]);
            }
            memory.weights[product][eight][p][lane] = {pairs[0], pairs[1]};
        }
    }
}

// Write a tile's sums of a piece.
template <int EIGHTS>
__device__ inline void write_piece(const Call &call, int piece, int first,
                                   const float (&sums)[EIGHTS][4], const float (&squares)[2]) {
    const int lane = threadIdx.x % 32, column = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // Four lanes have a row's channels.
        float square = squares[i] + __shfl_xor_sync(ALL, squares[i], 1);
        square += __shfl_xor_sync(ALL, square, 2);
        const int token = first + lane / 4 + i * 8;
        if (token >= call.tokens) continue;
        float *const to = call.sums + ((long long)token * PIECES + piece) * SENT;
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            *reinterpret_cast<float2 *>(to + eight * 8 + column * 2) =
                make_float2(sums[eight][i * 2], sums[eight][i * 2 + 1]);
        }
        to[LINES + column] = column ? 0.0f : square;
    }
}

// Multiply a piece of a warp's tiles, the first and the one that is `PIECE_WARPS` later.
template <class Shape, int EIGHTS, int TILES>
__device__ inline void multiply_piece(const Call &call, int piece,
                                      const PieceMemory<Shape, EIGHTS> &memory, int first) {
    constexpr int TOKEN = PieceMemory<Shape, EIGHTS>::TOKEN, NEXT = PIECE_WARPS * TOKENS;
    const int lane = threadIdx.x % 32;
    float sums[TILES][Shape::CHAINS][EIGHTS][4] = {}, squares[TILES][2] = {};
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const unsigned char *const at = memory.tokens + (first + lane % 16) * TOKEN + lane / 16 * 16;
#pragma unroll 2
    for (int product = 0; product < Shape::PRODUCTS; product++) {
        unsigned x[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) load_matrices(x[i], at + i * NEXT * TOKEN + product * 32);
#pragma unroll
        for (int p = 0; p < 3; p++) {
#pragma unroll
            for (int eight = 0; eight < EIGHTS; eight++) {
                const int part = Shape::LEAST_FIRST ? 2 - p : p;
                const uint2 pairs = memory.weights[product][eight][part][lane];
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    multiply(sums[i][product % Shape::CHAINS][eight], x[i], {pairs.x, pairs.y});
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) add_squares(squares[i], x[i]);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if constexpr (Shape::CHAINS == 2) {
#pragma unroll
            for (int j = 0; j < EIGHTS * 4; j++) {
                sums[i][0][j / 4][j % 4] += sums[i][1][j / 4][j % 4];
            }
        }
        write_piece(call, piece, first + i * NEXT, sums[i][0], squares[i]);
    }
}

template <class Shape, int EIGHTS>
__device__ inline void run_piece(const Call &call, PieceMemory<Shape, EIGHTS> &memory) {
    constexpr int TOKEN = PieceMemory<Shape, EIGHTS>::TOKEN;
    const int piece = blockIdx.x, warp = warp_number();
    const int first = warp * TOKENS, second = first + PIECE_WARPS * TOKENS;
    ask_for_piece<Shape, EIGHTS>(call, piece);
    await_launch_before();
    for (int start : {first, second}) {
        if (start >= call.tokens) break;
        fetch_piece<Shape, TOKEN>(call, piece, start, memory.tokens + start * TOKEN);
    }
    keep_weights(call, piece, memory, warp);
    await_copies();
    __syncthreads();
    if (second < call.tokens) {
        multiply_piece<Shape, EIGHTS, 2>(call, piece, memory, first);
    } else if (first < call.tokens) {
        multiply_piece<Shape, EIGHTS, 1>(call, piece, memory, first);
    }
}
