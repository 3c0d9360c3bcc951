/* Faults of saved sessions, which the sample cannot show because it saves none: libheadwater's C ABI as a plug-in, with one
 * thing wrong that the environment variable SAVED_FAULT names. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headwater/plugin.h"

const headwater_engine_table* with_saved_faults(const headwater_engine_table* table);

static headwater_engine_table right; /* the table without a fault */

static int is(const char* fault) {
  const char* wanted = getenv("SAVED_FAULT");
  return wanted != NULL && strcmp(wanted, fault) == 0;
}

static headwater_status save(headwater_session* session, const char* path, const char* fingerprint) {
  FILE* file = fopen(path, "r");
  if (file != NULL) fclose(file);
  if (is("old_file_kept") && file != NULL) return HEADWATER_OK;
  if (is("file_emptied_first") && (file = fopen(path, "w")) != NULL) fclose(file);
  const headwater_status status = right.save(session, path, is("fingerprint_ignored") ? NULL : fingerprint);
  if (is("other_file_left")) {
    char other[512];
    snprintf(other, sizeof other, "%s.tmp", path);
    if ((file = fopen(other, "w")) != NULL) fclose(file);
  }
  return is("open_step_saved") && status == HEADWATER_WRONG_STATE ? HEADWATER_OK : status;
}

static void forget_scores(headwater_session* session) {
  int64_t tokens = 0;
  headwater_score_view view;
  if (right.session_tokens(session, &tokens) != HEADWATER_OK ||
      right.scores(session, 0, &view) != HEADWATER_OK)
    return;
  const size_t size = view.type == HEADWATER_SCORE_BF16 ? 2 : 4;
  void* scores;
  memcpy(&scores, &view.data, sizeof scores);
  memset(scores, 0, (size_t)tokens * size); /* of the first head */
}

static headwater_status load(const headwater_shape* shape, const headwater_options* options, const char* path,
                             const char* fingerprint, headwater_session** session) {
  if (is("nothing_loaded")) return right.open(shape, options, session);
  const headwater_status status =
      right.load(shape, options, path, is("fingerprint_ignored") ? NULL : fingerprint, session);
  if (status == HEADWATER_OK && is("scores_forgotten")) forget_scores(*session);
  int64_t tokens = 0;
  if (status == HEADWATER_OK && is("newest_forgotten") &&
      right.session_tokens(*session, &tokens) == HEADWATER_OK)
    right.truncate(*session, tokens - 1);
  if (status != HEADWATER_OK && is("session_after_error")) right.open(shape, options, session);
  if (status == HEADWATER_INVALID_ARGUMENT && is("damage_believed"))
    return right.open(shape, options, session);
  return status;
}

static headwater_status session_chunk_count(const headwater_session* session, int64_t* count) {
  const headwater_status status = right.session_chunk_count(session, count);
  if (is("chunks_forgotten") && *count > 1) --*count;
  if (is("chunks_without_end")) *count = INT64_C(1) << 40;
  return status;
}

static headwater_status session_chunk(const headwater_session* session, int64_t index, headwater_chunk* chunk,
                                      int64_t* memory_count) {
  const headwater_status status = right.session_chunk(session, index, chunk, memory_count);
  if (is("memory_count_of_another")) ++*memory_count;
  if (is("chunk_written_behind")) memory_count[1] = 0;
  return status;
}

static const char* last_error(void) {
  return is("errors_unnamed") ? "something is not as it should be" : right.last_error();
}

const headwater_engine_table* with_saved_faults(const headwater_engine_table* table) {
  static headwater_engine_table faulty;
  faulty = right = *table;
  faulty.save = save;
  faulty.load = load;
  faulty.session_chunk_count = session_chunk_count;
  faulty.session_chunk = session_chunk;
  faulty.last_error = last_error;
  return &faulty;
}
