/* The pages that may follow one page: a crit-bit trie over their tokens.
 *
 * The keys are whole pages of 32-bit tokens, -1 behind the valid ones, so that no key is a prefix
 * of another. A reference is 0 (empty), a page (positive), or a branch (negative, by the id of the
 * page that bears it). A branch knows the first bit in which its two halves differ; on the way down
 * only those bits are looked at, and the page that is reached shares with the query the longest run
 * that any sibling does. One page that follows needs no branch and no search.
 *
 * Every page but one bears a branch, and that branch lies above it: `siblings_remove` keeps it so.
 *
 * Source: D. J. Bernstein's crit-bit trees, after Morrison's PATRICIA (1968).
 */
#include <string.h>

#include "core.h"

static inline bool bit_of(const int32_t *tokens, int32_t at) {
    return ((uint32_t)tokens[at >> 5] >> (31 - (at & 31))) & 1;
}

/* Return how many tokens the two have in common from their start on. */
int32_t common_run(const int32_t *left, const int32_t *right, int32_t length) {
    if (length && memcmp(left, right, (size_t)length * sizeof *left) == 0) return length;
    int32_t run = 0;
    while (run < length && left[run] == right[run]) run++;
    return run;
}

/* Return the page with the longest run in common with `page_tokens`, or 0 if there is none. */
int32_t siblings_nearest(const Tree *tree, int32_t trie, const int32_t *page_tokens) {
    while (trie < 0) {
        int32_t bearer = -trie;
        bool high = bit_of(page_tokens, tree->split_at[bearer]);
        trie = high ? tree->split_high[bearer] : tree->split_low[bearer];
    }
    return trie;
}

/* Add a page whose tokens no sibling has; it must not bear a branch. */
void siblings_add(Tree *tree, int32_t *trie, int32_t page) {
    if (*trie == 0) {
        *trie = page;
        return;
    }
    const int32_t *mine = tokens_of(tree, page);
    const int32_t *other = tokens_of(tree, siblings_nearest(tree, *trie, mine));
    int32_t word = common_run(mine, other, tree->page_size);
    int32_t at = word * 32 + __builtin_clz((uint32_t)mine[word] ^ (uint32_t)other[word]);
    while (*trie < 0 && tree->split_at[-*trie] < at) {
        int32_t bearer = -*trie;
        bool high = bit_of(mine, tree->split_at[bearer]);
        trie = high ? &tree->split_high[bearer] : &tree->split_low[bearer];
    }
    bool high = bit_of(mine, at);
    tree->split_at[page] = at;
    tree->split_low[page] = high ? *trie : page;
    tree->split_high[page] = high ? page : *trie;
    *trie = -page;
}

/* Take a page out. The branch right above it goes; the one that the page bears moves to the bearer
 * of that branch, who stands below both. */
void siblings_remove(Tree *tree, int32_t *trie, int32_t page) {
    const int32_t *mine = tokens_of(tree, page);
    int32_t *own = NULL, *above = NULL;
    while (*trie < 0) {
        int32_t bearer = -*trie;
        if (bearer == page) own = trie;
        above = trie;
        bool high = bit_of(mine, tree->split_at[bearer]);
        trie = high ? &tree->split_high[bearer] : &tree->split_low[bearer];
    }
    if (above == NULL) {
        *trie = 0;
        return;
    }
    int32_t gone = -*above;
    *above = trie == &tree->split_high[gone] ? tree->split_low[gone] : tree->split_high[gone];
    if (own != NULL && own != above) {
        tree->split_at[gone] = tree->split_at[page];
        tree->split_low[gone] = tree->split_low[page];
        tree->split_high[gone] = tree->split_high[page];
        *own = -gone;
    }
}
