/* K and V rows: those that the session stores (STATE-6), and those that the caller keeps (ROWS-1). */

#include "tests/plugin/naive.h"

const void* stored_row(const struct headwater_session* s, const struct layer* layer, bool key,
                       int64_t head_kv, int64_t position) {
  const int64_t size = (int64_t)element_size(s->shape.kv_type);
  if (s->options.kv_owner == HEADWATER_KV_OF_SESSION) {
    const int64_t width = key ? layer->d : layer->dv;
    return (key ? layer->keys : layer->values) + (head_kv * s->shape.capacity + position) * width * size;
  }
  const headwater_stored_rows* rows = &s->stored;
  const bool by_key_strides = key || FAULT(stored_strides_mixed);
  int64_t at = head_kv * (by_key_strides ? rows->key_head_stride : rows->value_head_stride);
  if (rows->table != NULL) {
    const int64_t page =
        FAULT(stored_table_ignored) ? position / rows->page_rows : rows->table[position / rows->page_rows];
    at += page * (by_key_strides ? rows->key_page_stride : rows->value_page_stride);
    position %= rows->page_rows;
  }
  at += position * (by_key_strides ? rows->key_row_stride : rows->value_row_stride);
  return (const unsigned char*)(key ? rows->keys : rows->values) + at * size;
}

headwater_status check_stored(const struct headwater_session* s, const headwater_stored_rows* rows) {
  const int64_t tokens = s->tokens + s->n;
  if (rows->struct_size < sizeof *rows) {
    return fail(HEADWATER_INVALID_ARGUMENT, "rows.struct_size is %zu; allowed: %zu or more",
                rows->struct_size, sizeof *rows);
  }
  if (rows->keys == NULL || rows->values == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "rows.keys or rows.values is NULL; allowed: rows");
  }
  headwater_status status = check_range("rows.rows", rows->rows, tokens, INT64_MAX);
  if (status != HEADWATER_OK || rows->table == NULL) return status;
  status = check_range("rows.page_rows", rows->page_rows, 1, INT64_MAX);
  if (status != HEADWATER_OK) return status;
  const int64_t pages = (tokens - 1) / rows->page_rows + 1;
  status = check_range("rows.table_size", rows->table_size, pages, INT64_MAX);
  for (int64_t i = 0; status == HEADWATER_OK && i < pages && !FAULT(stored_table_unchecked); ++i) {
    status = check_range("rows.table", rows->table[i], 0, rows->pages - 1);
  }
  return status;
}

static void store(const struct headwater_session* s, unsigned char* to, int64_t width,
                  const headwater_rows* from) {
  for (int64_t g = 0; g < s->shape.n_head_kv; ++g) {
    for (int64_t t = 0; t < s->n; ++t) {
      const int64_t row = (g * s->shape.capacity + s->tokens + t) * width;
      const int64_t given = t * from->row_stride + g * from->head_stride;
      for (int64_t x = 0; x < width; ++x) {
        store_element(to, s->shape.kv_type, row + x, load_element(from->data, from->type, given + x));
      }
    }
  }
}

void store_rows(const struct headwater_session* s, struct layer* layer, const headwater_rows* k,
                const headwater_rows* v) {
  store(s, layer->keys, layer->d, k);
  store(s, layer->values, layer->dv, v);
}
