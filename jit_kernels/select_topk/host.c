/* The k best scores of a row, found digit by digit from the top. */
#include "../host.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Return a number that compares as the score does; NaN is the greatest, as in a sort by torch. */
INLINE uint32_t order_of(float score) {
    uint32_t bits;
    score += 0.0f; /* there is but one zero */
    memcpy(&bits, &score, sizeof bits);
    uint32_t flipped = bits >> 31 ? ~bits : bits | 0x80000000u;
    return score != score ? UINT32_MAX : flipped;
}

/* Return the k-th greatest of `count` orders, 0 < k <= count; `ties` becomes how many of those
 * equal to it are among the k. `left` [count] is scratch: what still may be the k-th. */
static uint32_t threshold(const uint32_t *orders, uint32_t *left, int64_t count, int64_t k,
                          int64_t *ties) {
    static const int shifts[] = {32 - DIGIT_BITS, 32 - 2 * DIGIT_BITS, 0};
    uint32_t found = 0;
    for (int i = 0; i < 3; i++) {
        int32_t counts[DIGITS] = {0};
        for (int64_t j = 0; j < count; j++) counts[orders[j] >> shifts[i] & (DIGITS - 1)]++;
        uint32_t digit = DIGITS - 1;
        while (counts[digit] < k) k -= counts[digit--];
        int64_t kept = 0;
        for (int64_t j = 0; j < count; j++) {
            left[kept] = orders[j];
            kept += (orders[j] >> shifts[i] & (DIGITS - 1)) == digit;
        }
        /* The last two digits share a bit, which is the same in all that is left. */
        found |= digit << shifts[i];
        orders = left;
        count = kept;
    }
    *ties = k;
    return found;
}

/* scores [rows, slots] -> out [rows, top_k] int64, ascending, -1 behind the last. Return -2 where
 * there is no memory. */
int select_topk(const float *scores, int64_t stride, const int64_t *visible, int64_t *out,
                int64_t rows, int64_t slots, int64_t top_k) {
    uint32_t *orders = malloc((2 * slots + 1) * sizeof *orders), *left = orders + slots;
    if (!orders) return -2;
    for (int64_t r = 0; r < rows; r++, scores += stride, out += top_k) {
        int64_t seen = visible[r] < slots ? visible[r] : slots, chosen = 0;
        if (seen <= top_k) {
            for (; chosen < seen; chosen++) out[chosen] = chosen;
        } else if (top_k) {
            int64_t ties;
            for (int64_t i = 0; i < seen; i++) orders[i] = order_of(scores[i]);
            uint32_t least = threshold(orders, left, seen, top_k, &ties);
            for (int64_t i = 0; chosen < top_k; i++)
                if (orders[i] > least || (orders[i] == least && ties-- > 0)) out[chosen++] = i;
        }
        for (; chosen < top_k; chosen++) out[chosen] = -1;
    }
    free(orders);
    return 0;
}
