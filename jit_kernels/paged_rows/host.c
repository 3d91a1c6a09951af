/* Rows of bytes in pages: a data part and a scale part each, copied one by one. */
#include "../host.h"

/* Copy `rows` [count, data + scale] to or from the slots of `pages`. Return -1, before anything is
 * copied, for a slot that is none. */
int copy_rows(uint8_t *pages, const int64_t *slots, uint8_t *rows, int64_t to_pages, int64_t count,
              int64_t units, int64_t page_rows, int64_t data, int64_t scale, int64_t page_bytes) {
    for (int64_t i = 0; i < count; i++)
        if (slots[i] < 0 || slots[i] >= units * page_rows) return -1;
    for (int64_t i = 0; i < count; i++, rows += data + scale) {
        int64_t unit = slots[i] / page_rows, place = slots[i] % page_rows;
        uint8_t *page = pages + unit * page_bytes;
        uint8_t *data_part = page + place * data;
        uint8_t *scale_part = page + page_rows * data + place * scale;
        memcpy(to_pages ? data_part : rows, to_pages ? rows : data_part, data);
        memcpy(to_pages ? scale_part : rows + data, to_pages ? rows + data : scale_part, scale);
    }
    return 0;
}
