/* Items by age, linked through arrays. An item stands in one list of its links, or in none. */
#include "core.h"

void list_push_newest(List *list, Links links, int32_t item) {
    list_push_before(list, links, item, 0);
}

/* Add `item` as the next older one of `newer`; 0 for `newer` makes it the newest of all. */
void list_push_before(List *list, Links links, int32_t item, int32_t newer) {
    int32_t older = newer ? links.older[newer] : list->newest;
    links.older[item] = older;
    links.newer[item] = newer;
    if (older) links.newer[older] = item;
    else list->oldest = item;
    if (newer) links.older[newer] = item;
    else list->newest = item;
    list->length++;
}

void list_remove(List *list, Links links, int32_t item) {
    int32_t older = links.older[item], newer = links.newer[item];
    if (older) links.newer[older] = newer;
    else list->oldest = newer;
    if (newer) links.older[newer] = older;
    else list->newest = older;
    links.older[item] = links.newer[item] = 0;
    list->length--;
}
