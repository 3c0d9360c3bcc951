#pragma once

#include <memory>

#include "headwater/engine.hpp"

namespace headwater::conformance {

/// The faults of a wrapped engine.
enum class Fault {
  none,
  adds_to_outputs,           ///< 1e-3 on every output
  scales_outputs,            ///< by 1 + 2^-15
  swaps_heads,               ///< outputs of heads 0 and 1
  drops_newest_key,          ///< the last row of every step is handed on as zero key and value
  shifts_lse,                ///< by 1e-4
  column_sum_off_by_ulps,    ///< reported intra column sums by one ulp
  column_sum_missing_query,  ///< reported intra column sums 1/n too small
  stale_sets,                ///< reports the sets of the chunk before
  scores_off_by_one,         ///< the score of the last token shows one unit more
  leaves_outputs,            ///< the last row is not written
  nan_output,                ///< the last output is NaN
  nan_lse,                   ///< and so is the first log-sum-exp that is reported
  writes_before_rows,        ///< one element in front of the first row
  writes_between_rows,       ///< one element after every row
  reads_past_rows,           ///< a value read past the last input row reaches the output
  differs_by_thread,         ///< the last bit of an output depends on Options::threads
  differs_by_run,            ///< and on how many sessions were opened
  sees_next_token,           ///< the first output of a step depends on the last value row
  allocates,                 ///< attend() takes memory
  forgets_to_reset,          ///< reset() leaves a trace in the next run's outputs
  plans_one_more,            ///< the last chunk of every plan stands there twice
  forgets_chunks,            ///< chunks() are those of the last step alone
  counts_open_step,          ///< tokens() counts the open step

  // Rule `blocks`.
  block_votes_off_by_ulps,  ///< reported block votes by one ulp
  token_votes_off_by_ulps,  ///< reported token votes by one ulp
  swaps_block_votes,        ///< the first two candidates' votes
  swaps_token_votes,        ///< the first two tokens' votes
  set_of_first_block,       ///< every query block reports the set of the first one
  key_twice,                ///< the first entry of every set stands there twice
  reports_column_sums,      ///< zeros, where there are none
  one_candidate_fewer,      ///< the last candidate is not voted on
  leaves_candidate_out,     ///< a candidate that no set keeps has the vote -infinity
  leaves_region_out,        ///< so has a region of them, of those that were searched
  searches_another_region,  ///< its votes stand at a region that was not searched
  searches_region_more,     ///< and at both

  // Rule `sketches`.
  shifts_unchosen_vote,   ///< a vote of no chosen token, by 1e-3
  misses_best_candidate,  ///< sets lack the token with the highest vote
  chooses_below_least,    ///< sets have one that no vote allows, where there is room
  set_not_sorted,         ///< the first two entries change places

  remembers_steps,  ///< outputs depend on the number of steps before

  // Steps that are taken back, interrupts, log-sum-exps, the host's threads.
  abort_keeps_sets,           ///< memory() shows the sets of the aborted step until the next one
  abort_without_step,         ///< is no error
  truncate_keeps_scores,      ///< scores() shows those from before until the next step
  settles_late,               ///< one checkpoint more than was asked for
  settles_early,              ///< one less
  lse_without_sink,           ///< log-sum-exps that were asked for
  lse_off_by_ulps,            ///< the first of them
  interrupt_ignored,          ///< never asked
  interrupt_answer_lost,      ///< asked, and the answer dropped
  interrupt_asked_once,       ///< in each call
  interrupt_on_other_thread,  ///< asked there
  interrupt_outside,          ///< asked in begin(), too
  hides_a_claim,              ///< set_interrupt() works and is not claimed
  ignores_host_threads,       ///< works on its own ones
  ignores_host_memory,        ///< takes its own
  estimates_too_little,       ///< of the rows of a full session
};

[[nodiscard]] const char* fault_name(Fault fault);

/// An engine that hands everything to `inner` and commits one fault. `inner` must outlive it.
[[nodiscard]] std::unique_ptr<Engine> faulty_engine(const Engine& inner, Fault fault);

}  // namespace headwater::conformance
