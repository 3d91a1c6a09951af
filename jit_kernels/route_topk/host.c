/* Scores of experts, the best of them, and their weights. */
#include "../host.h"

INLINE float expert_score(float logit) {
    return sqrtf(log1pf(expf(-fabsf(logit))) + (logit > 0.0f ? logit : 0.0f));
}

/* Choose the top_k greatest of score + bias, ties to the lower id. */
static void choose_experts(const float *scores, const float *bias, int64_t *experts, int64_t count,
                           int64_t top_k) {
    for (int64_t k = 0; k < top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < count; e++) {
            int taken = 0;
            for (int64_t i = 0; i < k; i++) taken |= experts[i] == e;
            if (!taken && (best < 0 || scores[e] + bias[e] > scores[best] + bias[best])) best = e;
        }
        experts[k] = best;
    }
}

/* bias NULL: `experts` [tokens, top_k] is given, else it is written. Return -1 for an expert that
 * is none. */
int route(const float *logits, const float *bias, int64_t *experts, float *weights, float scale,
          int64_t tokens, int64_t count, int64_t top_k) {
    for (int64_t t = 0; t < tokens; t++, logits += count, experts += top_k, weights += top_k) {
        float scores[count], total = 1e-20f;
        for (int64_t e = 0; e < count; e++) scores[e] = expert_score(logits[e]);
        if (bias) choose_experts(scores, bias, experts, count, top_k);
        for (int64_t k = 0; k < top_k; k++) {
            if (experts[k] < 0 || experts[k] >= count) return -1;
            total += weights[k] = scores[experts[k]];
        }
        for (int64_t k = 0; k < top_k; k++) weights[k] = weights[k] / total * scale;
    }
    return 0;
}
