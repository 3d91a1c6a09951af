// One token of a row, drawn by a cluster that has all of its logits in registers: the very token of
// the reference. Every filter keeps a prefix of one order (larger logit first, ties to the lower
// id); where it ends is found by looking at three logits between two bounds at a time. Weights are
// the whole numbers of the reference, and so are all sums of them. Tokens that are kept race.
#pragma once

#include "cluster.cuh"
#include "device/order.cuh"
#include "noise.cuh"

struct Call {
    const float *logits;
    long long stride;
    const float *temperature, *top_p, *min_p;
    const long long *top_k;
    const long long *keys;
    long long *tokens;
    int vocab, filters, aligned;
};

constexpr double SCALE = 34359738368.0;  // 2^35
// Rounds in which the three logits divide what is between the bounds evenly; then their keys do.
constexpr int EVEN_ROUNDS = 12;

// FOURS times four logits a thread: those with the same number of all threads lie side by side.
template <int FOURS>
struct Shared {
    Exchange exchange;
    // Weights for the filters, then logits of what they keep.
    float4 weights[FOURS][THREADS];
    Whole segments[FOURS][WARPS];
};

// An integer that orders as float32 numbers do; both zeros have the same, and NaN that of -inf.
__device__ inline int key_of(float x) {
    x = x == x ? x + 0.0f : -INFINITY;
    const int bits = __float_as_int(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
}
__device__ inline float number_of(int key) {
    return __int_as_float(key ^ (key >> 31 & 0x7fffffff));
}

// A row, each thread's part of it.
template <int FOURS>
struct Row {
    Shared<FOURS> &shared;
    Place place;
    int keys[4 * FOURS];

    __device__ int id(int four, int i) const {
        return ((place.rank * FOURS + four) * THREADS + (int)threadIdx.x) * 4 + i;
    }

    __device__ void load(const Call &call, const float *logits) {
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            const int first = id(four, 0);
            float4 x = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (call.aligned && first + 3 < call.vocab) {
                x = __ldcs(reinterpret_cast<const float4 *>(logits + first));
            } else {
                if (first < call.vocab) x.x = logits[first];
                if (first + 1 < call.vocab) x.y = logits[first + 1];
                if (first + 2 < call.vocab) x.z = logits[first + 2];
                if (first + 3 < call.vocab) x.w = logits[first + 3];
            }
            keys[4 * four] = key_of(x.x), keys[4 * four + 1] = key_of(x.y);
            keys[4 * four + 2] = key_of(x.z), keys[4 * four + 3] = key_of(x.w);
        }
    }

    // The id of the largest logit, the lowest of several.
    __device__ int find_best() {
        Whole best = 0;
#pragma unroll
        for (int i = 0; i < 4 * FOURS; i++) {
            const unsigned high = (unsigned)keys[i] ^ 0x80000000u;
            const Whole mine = (Whole)high << 32 | ~(unsigned)id(i / 4, i % 4);
            best = mine > best ? mine : best;
        }
        return (int)~(unsigned)find_largest(shared.exchange, place, best);
    }

    // Make weights. Returns their mass, and how many logits are above -inf.
    __device__ double2 weigh(float largest, float temperature) {
        double mass = 0.0;
        int finite = 0;
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            float4 weights;
            float *const each = &weights.x;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = keys[4 * four + i];
                const float scaled = __fdiv_rn(number_of(key) - largest, temperature);
                const float weight = rintf(expf(scaled) * (float)SCALE);
                each[i] = weight >= 0.0f ? weight : 0.0f;
                mass += each[i];
                finite += key > key_of(-INFINITY);
            }
            shared.weights[four][threadIdx.x] = weights;
        }
        double sums[2] = {mass, (double)finite};
        sum_up(shared.exchange, place, sums);
        return make_double2(sums[0], sums[1]);
    }

    // The id that is number `goal` of those of which `counts(four, i)`, from 0 in the order of ids:
    // told to the one thread that has it.
    template <class Counts, class Found>
    __device__ void find(const Counts &counts, double goal, const Found &found) {
        double sums[1] = {0.0};
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            const Whole mine = sum_of_warp<8>((Whole)count_of_four(counts, four));
            if (place.lane == 0) shared.segments[four][place.warp] = mine, sums[0] += mine;
        }
        Share share = sum_up(shared.exchange, place, sums);
        if (share.before > goal || share.before + share.mine <= goal) return;
        // All warps of this block look for the segment; the one that has it looks on.
        int segment = -1;
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            const double mine = shared.segments[four][place.lane];
            const double reached = running_sum(mine) + share.before;
            const unsigned above = __ballot_sync(ALL, reached > goal);
            if (segment < 0 && above) {
                segment = four * WARPS + __ffs(above) - 1;
                share.before = __shfl_sync(ALL, reached - mine, __ffs(above) - 1);
            } else if (segment < 0) {
                share.before = __shfl_sync(ALL, reached, 31);
            }
        }
        if (segment % WARPS != place.warp) return;
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            if (four != segment / WARPS) continue;
            const double mine = count_of_four(counts, four);
            double reached = running_sum(mine) + share.before;
            const unsigned above = __ballot_sync(ALL, reached > goal);
            if (place.lane != __ffs(above) - 1) continue;
            reached -= mine;
            int token = -1;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                reached += counts(four, i);
                if (token < 0 && reached > goal) token = id(four, i);
            }
            found(token);
        }
    }

    // The token that wins among those that `keeps(four, i, weight)`, in the first warp of rank 0.
    template <class Keeps>
    __device__ int race(const Keeps &keeps, double warmth, Whole key) {
        // In shared memory, since this code is too long to stand here for every register.
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            float4 &mine = shared.weights[four][threadIdx.x];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = (&mine.x)[i];
                x = keeps(four, i, x) ? number_of(keys[4 * four + i]) : -INFINITY;
            }
        }
        // Of logits that are all -inf the lowest id wins, which is one of the row's.
        double best = -INFINITY;
        int winner = id(0, 0);
#pragma unroll 1
        for (int four = 0; four < FOURS; four++) {
            const float4 mine = shared.weights[four][threadIdx.x];
            if (fmaxf(fmaxf(mine.x, mine.y), fmaxf(mine.z, mine.w)) == -INFINITY) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const double score = score_of((&mine.x)[i], warmth, key, id(four, i));
                if (score > best) best = score, winner = id(four, i);
            }
        }
        const long long bits = __double_as_longlong(best + 0.0);
        const Whole order = (Whole)bits ^ ((Whole)(bits >> 63) | 1ull << 63);
        return (int)find_winner(shared.exchange, place, {order, (unsigned)winner}).id;
    }

  private:
    template <class Counts>
    __device__ double count_of_four(const Counts &counts, int four) const {
        return counts(four, 0) + counts(four, 1) + counts(four, 2) + counts(four, 3);
    }
    __device__ double running_sum(double x) const {
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(ALL, x, step);
            if (place.lane >= step) x += other;
        }
        return x;
    }
};

// Where top-k and top-p end: tokens above `high` are kept, and of those above `low` the ones with
// an id up to `last`.
struct Prefix {
    int low, high, last;

    __device__ bool keeps(int key, int id) const { return key > high || (key > low && id <= last); }
};

// What there is above a bound.
struct Above {
    double count, mass;
};

// Three keys between the bounds, ascending.
__device__ inline void divide(int (&keys)[3], int low, int high, int round, float temperature) {
    const float top = number_of(high), bottom = number_of(low), span = top - bottom;
    const bool even = round < EVEN_ROUNDS;
    const long long step = ((long long)high - low + 3) >> 2;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        long long key = low + (i + 1) * step;
        if (even && span < INFINITY) {
            key = key_of(bottom + span * (0.25f * (i + 1)));
        } else if (even && bottom == -INFINITY) {
            // Of what is further down all together weighs little.
            key = key_of(top - temperature * (i == 0 ? 16.0f : i == 1 ? 8.0f : 3.0f));
        }
        const long long least = i ? keys[i - 1] : low + 1ll;
        keys[i] = (int)max(least, min(key, high - 1ll));
    }
}

template <int FOURS>
__device__ inline Prefix find_prefix(Row<FOURS> &row, int largest, double2 all, long long top_k,
                                     double mass, float temperature, int vocab) {
    // The least logit whose first token is kept has its key in (low, high].
    int low = key_of(-INFINITY), high = largest;
    Above of_low = {all.y, all.x}, of_high = {0.0, 0.0};
    const double most = (double)top_k;
    for (int round = 0; (long long)high - low > 1 && of_low.count - of_high.count > 1; round++) {
        int keys[3];
        divide(keys, low, high, round, temperature);
        int counts[3] = {};
        double masses[3] = {};
#pragma unroll
        for (int four = 0; four < FOURS; four++) {
            bool some = false;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = row.keys[4 * four + i];
                some = some || (key > keys[0] && key <= high);
            }
            if (!some) continue;
            const float4 weights = row.shared.weights[four][threadIdx.x];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = row.keys[4 * four + i];
                if (key > high) continue;
#pragma unroll
                for (int n = 0; n < 3; n++) {
                    if (key <= keys[n]) continue;
                    counts[n]++, masses[n] += (&weights.x)[i];
                }
            }
        }
        double sums[6] = {(double)counts[0], (double)counts[1], (double)counts[2],
                          masses[0],         masses[1],         masses[2]};
        sum_up(row.shared.exchange, row.place, sums);
        // From the highest down: one that is kept is the new upper bound.
        const Above before = of_high;
        const int top = high;
        int next = top;
        Above of_next = before;
        bool found = false;
#pragma unroll
        for (int n = 2; n >= 0; n--) {
            const Above here = {sums[n] + before.count, sums[3 + n] + before.mass};
            const bool kept = here.count < most && here.mass <= mass;
            if (!found && kept) {
                next = keys[n], of_next = here;
            } else if (!found) {
                found = true, low = keys[n], of_low = here;
            }
        }
        high = next, of_high = of_next;
    }
    // Those left in between are equal, or one: how many stay is arithmetic.
    const long long group = max((long long)(of_low.count - of_high.count), 1ll);
    const long long each = (long long)(of_low.mass - of_high.mass) / group;
    const long long room = (long long)mass - (long long)of_high.mass;
    const long long fit = each ? room / each + 1 : group;
    const long long stay = min(top_k - (long long)of_high.count, fit);
    if (stay >= group) return {low, high, vocab};
    double last[1] = {0.0};
    row.find(
        [&](int four, int i) {
            const int key = row.keys[4 * four + i];
            return key > low && key <= high;
        },
        (double)(stay - 1), [&](int token) { last[0] = token; });
    sum_up(row.shared.exchange, row.place, last);
    return {low, high, (int)last[0]};
}

template <int FOURS>
__global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS)
    draw_tokens(const __grid_constant__ Call call) {
    extern __shared__ __align__(16) unsigned char memory[];
    Row<FOURS> row = {*reinterpret_cast<Shared<FOURS> *>(memory)};
    const long long nth = blockIdx.x / RANKS;
    const float *const logits = call.logits + nth * call.stride;
    take_turn();
    // What others tell lands in shared memory of blocks that have begun.
    meet();
    row.load(call, logits);
    const bool tells = row.place.rank == 0 && threadIdx.x == 0;
    const float temperature = call.temperature[nth];
    const double warmth = 1.0 / (double)temperature;
    const long long top_k = call.filters ? call.top_k[nth] : call.vocab;
    const float top_p = call.filters ? call.top_p[nth] : 1.0f;
    const double least = call.filters ? (double)call.min_p[nth] * SCALE : 0.0;
    const bool prefixes = top_k < call.vocab || !(top_p >= 1.0f);
    if (temperature > 0.0f && !prefixes && least <= 0.0) {
        const int token = row.race([](int, int, float) { return true; }, warmth, call.keys[nth]);
        if (tells) call.tokens[nth] = token;
        return;
    }
    const int best = row.find_best();
    // Where no filter leaves more than the first token, it is known already.
    if (tells) call.tokens[nth] = best;
    if (!(temperature > 0.0f) || top_k <= 1 || !(least <= SCALE)) return;
    const float largest = logits[best];
    const double2 all = row.weigh(largest, temperature);
    Prefix prefix = {key_of(-INFINITY), 0x7fffffff, call.vocab};
    if (prefixes) {
        double mass = (double)top_p * all.x;
        mass = mass >= 0.0 ? fmin(mass, all.x) : 0.0;
        prefix = find_prefix(row, key_of(largest), all, top_k, mass, temperature, call.vocab);
    }
    const int token = row.race(
        [&](int four, int i, float weight) {
            return weight >= least && prefix.keeps(row.keys[4 * four + i], row.id(four, i));
        },
        warmth, call.keys[nth]);
    if (tells) call.tokens[nth] = token;
}
