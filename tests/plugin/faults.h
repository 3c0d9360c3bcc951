#ifndef FAULTS_H_
#define FAULTS_H_

/*
 * Not for copying: the faults that tests/plugin/test_broken.py plants to see the kit find them. In the sample FAULT(x) is 0
 * and vanishes. In the broken copy (NAIVE_BROKEN) the environment variable NAIVE_FAULT names the one that is on.
 */

#define NAIVE_FAULTS(X)        \
  X(none)                      \
  X(sees_next_key)             \
  X(ignores_sinks)             \
  X(column_sum_misses_a_query) \
  X(float_inside)              \
  X(truncates)                 \
  X(ties_by_higher_position)   \
  X(stale_score)               \
  X(stale_set)                 \
  X(batch_ignored)             \
  X(short_pool_by_whole_size)  \
  X(set_of_first_block)        \
  X(pinned_once)               \
  X(pinned_tokens_by_votes)    \
  X(pins_no_tokens)            \
  X(dense_layer_forgotten)     \
  X(turn_by_its_first_call)    \
  X(no_rule_blocks)            \
  X(rule_refused_unnamed)      \
  X(differs_by_threads)        \
  X(differs_by_run)            \
  X(differs_by_schedule)       \
  X(allocates)                 \
  X(allocates_aligned)         \
  X(writes_behind_rows)        \
  X(writes_far_behind_rows)    \
  X(writes_input)              \
  X(writes_sinks)              \
  X(skips_last_row)            \
  X(key_row_too_long)          \
  X(key_row_too_early)         \
  X(state_too_long)            \
  X(options_too_long)          \
  X(scores_nowhere)            \
  X(set_beyond_its_width)      \
  X(record_of_no_chunk)        \
  X(record_of_no_layer)        \
  X(claims_change)             \
  X(keeps_sinks_pointer)       \
  X(crashes)                   \
  X(hangs)                     \
  X(exits)                     \
  X(leaves_a_process)          \
  X(writes_to_every_file)      \
  X(prints)                    \
  X(layer_twice_allowed)       \
  X(failure_hidden)            \
  X(reset_keeps_scores)        \
  X(abort_keeps_scores)        \
  X(truncate_keeps_sets)       \
  X(settles_early)             \
  X(interrupt_ignored)         \
  X(interrupt_leaves_step)     \
  X(interrupt_after_attend)    \
  X(lse_in_base_2)             \
  X(malloc_unchecked)          \
  X(malloc_leaks)              \
  X(bytes_too_small)           \
  X(status_99)                 \
  X(error_without_text)        \
  X(error_of_two_lines)        \
  X(record_too_small)          \
  X(observer_from_thread)      \
  X(open_without_session)      \
  X(flushes_subnormals)        \
  X(rounds_upwards)            \
  X(writes_layers)             \
  X(writes_table)              \
  X(layer_size_ignored)        \
  X(keeps_layers_pointer)      \
  X(window_off_by_one)         \
  X(layer_scale_forgotten)     \
  X(layer_width_cut)           \
  X(layer_cap_forgotten)       \
  X(layer_sinks_forgotten)     \
  X(stored_table_ignored)      \
  X(stored_strides_mixed)      \
  X(stored_table_unchecked)    \
  X(rows_alone_not_stored)     \
  X(rows_alone_observed)       \
  X(rows_alone_in_prefill)     \
  X(fork_shares_scores)        \
  X(fork_forgets_newest)       \
  X(fork_keeps_observer)       \
  X(fork_without_session)      \
  X(fork_writes_behind)        \
  X(fork_in_open_step)         \
  X(fork_is_itself)            \
  X(fork_unchecked)            \
  X(fork_leaks)

enum naive_fault {
#define NAIVE_ENUM(name) FAULT_##name,
  NAIVE_FAULTS(NAIVE_ENUM)
#undef NAIVE_ENUM
};

#ifdef NAIVE_BROKEN
extern enum naive_fault naive_fault;
#define FAULT(name) (naive_fault == FAULT_##name)
#else
#define FAULT(name) 0
#endif

#endif
