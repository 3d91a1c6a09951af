/* How many turns a conversation has had: what tells best whether it will go on.
 *
 * The pages of a conversation know the most turns that any has had through them. Once they are
 * evicted a small table of fixed size still does, by a hash of all tokens up to its last end, and
 * tells when the same tokens are computed again. None of this decides what matches: a wrong guess
 * costs a worse choice of whom to evict.
 */
#include "core.h"

/* Return the hash of a sequence of whole pages, one page longer. */
uint64_t trail_add(uint64_t trail, const int32_t *tokens, int32_t length) {
    uint64_t lanes[4] = {trail, 0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u};
    for (int32_t i = 0; i < length; i++) {
        uint64_t *lane = &lanes[i & 3];
        *lane = (*lane ^ (uint32_t)tokens[i]) * 0xD6E8FEB86659FD93u;
        *lane ^= *lane >> 32;
    }
    return (lanes[0] ^ lanes[1] * 3 ^ lanes[2] * 5 ^ lanes[3] * 7) | 1;
}

static Trace *trace_of(const Tree *tree, uint64_t trail) {
    return &tree->traces[(trail >> 32) & (uint64_t)tree->trace_mask];
}

/* Return the kind of a request's end on `page`; 0 is no end. */
static int32_t kind_of(const Tree *tree, int32_t turns, int32_t page) {
    int32_t by_turns = turns <= 5 ? turns - 1 : turns <= 7 ? 5 : turns <= 11 ? 6 : 7, by_length = 0;
    while (by_length < LENGTH_CLASSES - 1 && tree->number[page] >= FIRST_LENGTH_PAGES << by_length)
        by_length++;
    return 1 + by_turns * LENGTH_CLASSES + by_length;
}

static int32_t most_turns(int32_t turns) { return turns < 255 ? turns : 255; }

/* Return the turns that a conversation going on from `full_tokens` will have had at its end. */
int32_t turns_after(const Tree *tree, int32_t holder, int32_t full_tokens) {
    if (holder <= 0 || tree->turns[holder] == 0) return 1;
    int32_t end = tree->number[holder] * tree->page_size + tree->length[holder];
    bool gone_on = tree->children[holder] || tree->flags[holder] & FLAG_FORKED;
    return full_tokens == end && !gone_on ? most_turns(tree->turns[holder] + 1) : 1;
}

static void count_return(Tree *tree, Trace *trace) {
    Returns *returns = &tree->returns[trace->kind];
    returns->returned++;
    returns->waited += tree->tick - trace->tick;
    trace->trail = 0;
}

static int32_t whole_page(const Tree *tree, int32_t page) {
    return tree->length[page] == tree->page_size ? page : tree->parent[page];
}

/* A match ended at `holder`: if a conversation did, too, this is its next turn. */
void turns_return(Tree *tree, int32_t holder) {
    int32_t whole = whole_page(tree, holder);
    if (whole <= 0) return;
    Trace *trace = trace_of(tree, tree->trail[whole]);
    if (trace->trail == (uint32_t)tree->trail[whole]) count_return(tree, trace);
}

/* A whole page was computed: if a conversation had once ended in it or right behind it, this is
 * its next turn. */
void turns_learn(Tree *tree, Insertion *insertion, int32_t page) {
    Trace *trace = trace_of(tree, tree->trail[page]);
    if (trace->trail != (uint32_t)tree->trail[page] || trace->tick >= insertion->since) return;
    if (trace->turns >= insertion->turns) insertion->turns = most_turns(trace->turns + 1);
    count_return(tree, trace);
}

/* A sequence parts from others where their output had begun, and which were there before it came:
 * an answer was edited or asked for again, which is a turn of the same conversation. */
void turns_part(Tree *tree, Insertion *insertion, int32_t page) {
    if (!(tree->flags[page] & FLAG_OUTPUT) || tree->stamp[page] > insertion->since) return;
    if (tree->turns[page] >= insertion->turns) insertion->turns = most_turns(tree->turns[page] + 1);
}

/* A request ends at `insertion->node`: note its turns on all pages up to there and in the table. */
void turns_end(Tree *tree, const Insertion *insertion) {
    int32_t node = insertion->node, kind = kind_of(tree, insertion->turns, node);
    int32_t whole = whole_page(tree, node);
    for (int32_t page = node; page > 0 && tree->turns[page] < insertion->turns;
         page = tree->parent[page])
        tree->turns[page] = (uint8_t)insertion->turns;
    tree->kind[node] = (uint8_t)kind;
    tree->returns[kind].ended++;
    if (whole <= 0) return;
    Trace *trace = trace_of(tree, tree->trail[whole]);
    trace->trail = (uint32_t)tree->trail[whole];
    trace->tick = tree->tick;
    trace->turns = (uint8_t)insertion->turns;
    trace->kind = (uint8_t)kind;
}

/* A sequence was copied from another tree: its pages know the turns that it has had there. */
void turns_copy(Tree *tree, const Insertion *insertion) {
    int32_t turns = insertion->copied - 1;
    for (int32_t page = insertion->node; page > 0 && tree->turns[page] < turns;
         page = tree->parent[page])
        tree->turns[page] = (uint8_t)turns;
}
