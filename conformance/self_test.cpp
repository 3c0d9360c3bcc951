#include "conformance/self_test.hpp"

#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "conformance/faulty_engine.hpp"
#include "conformance/runner.hpp"
#include "headwater/engine.hpp"

namespace headwater::conformance {
namespace {

// A fault, the case of every lane that must find it, and the engine that commits it.
struct Trial {
  Fault fault;
  const char* test;
  const char* engine = "cpu-portable";
};

const std::vector<Trial>& trials() {
  static const std::vector<Trial> all{
      {Fault::none, "exact.powers_of_two"},
      {Fault::none, "bound.plain_f32"},
      {Fault::none, "replay.random"},
      {Fault::adds_to_outputs, "bound.plain_f32"},
      {Fault::adds_to_outputs, "exact.powers_of_two"},
      {Fault::scales_outputs, "bound.plain_f32"},
      {Fault::scales_outputs, "bias.signed_mean_error"},
      {Fault::swaps_heads, "bound.grouped_heads"},
      {Fault::swaps_heads, "law.head_permutation"},
      {Fault::drops_newest_key, "bound.ragged"},
      {Fault::drops_newest_key, "exact.powers_of_two"},
      {Fault::shifts_lse, "bound.plain_f32"},
      {Fault::column_sum_off_by_ulps, "exact.powers_of_two"},
      {Fault::column_sum_missing_query, "law.partition_of_unity"},
      {Fault::stale_sets, "replay.random"},
      {Fault::scores_off_by_one, "replay.random"},
      {Fault::leaves_outputs, "hostile.strided"},
      {Fault::nan_output, "bound.plain_f32"},
      {Fault::nan_lse, "bound.plain_f32"},
      {Fault::writes_before_rows, "hostile.strided"},
      {Fault::writes_between_rows, "hostile.strided"},
      {Fault::reads_past_rows, "hostile.strided"},
      {Fault::differs_by_thread, "determinism.threads"},
      {Fault::differs_by_run, "determinism.runs"},
      {Fault::sees_next_token, "law.causality"},
      {Fault::allocates, "allocation.none_after_open"},
      {Fault::forgets_to_reset, "determinism.after_reset"},
      {Fault::plans_one_more, "replay.random"},
      {Fault::forgets_chunks, "replay.random"},
      {Fault::counts_open_step, "state.protocol"},
      // Votes of double arithmetic are right to their rounding, so that an ulp shows.
      {Fault::none, "blocks.replay", "reference"},
      {Fault::none, "blocks.bound_f32", "reference"},
      {Fault::none, "blocks.history", "reference"},
      {Fault::block_votes_off_by_ulps, "blocks.bound_f32", "reference"},
      {Fault::block_votes_off_by_ulps, "blocks.exact_votes", "reference"},
      {Fault::token_votes_off_by_ulps, "blocks.bound_f32", "reference"},
      {Fault::swaps_block_votes, "blocks.replay", "reference"},
      {Fault::swaps_block_votes, "blocks.nan_votes", "reference"},
      {Fault::swaps_token_votes, "blocks.replay", "reference"},
      {Fault::set_of_first_block, "blocks.replay", "reference"},
      {Fault::key_twice, "blocks.replay", "reference"},
      {Fault::stale_sets, "blocks.replay", "reference"},
      {Fault::reports_column_sums, "blocks.nothing_kept", "reference"},
      {Fault::one_candidate_fewer, "blocks.replay", "reference"},
      {Fault::none, "blocks.levels", "reference"},
      {Fault::none, "blocks.levels_exact", "reference"},
      {Fault::leaves_candidate_out, "blocks.replay", "reference"},
      {Fault::leaves_candidate_out, "blocks.levels", "reference"},
      {Fault::leaves_region_out, "blocks.levels", "reference"},
      {Fault::leaves_region_out, "blocks.levels_bad_keys", "reference"},
      {Fault::searches_another_region, "blocks.levels", "reference"},
      {Fault::searches_another_region, "blocks.levels_exact", "reference"},
      {Fault::searches_region_more, "blocks.levels", "reference"},
      {Fault::searches_region_more, "blocks.levels_bad_keys", "reference"},
      {Fault::block_votes_off_by_ulps, "blocks.levels_exact", "reference"},
      {Fault::scores_off_by_one, "blocks.nothing_kept", "reference"},
      {Fault::adds_to_outputs, "blocks.bound_f32", "reference"},
      {Fault::adds_to_outputs, "blocks.values", "reference"},
      {Fault::shifts_lse, "blocks.bound_f32", "reference"},
      {Fault::swaps_heads, "blocks.head_permutation", "reference"},
      {Fault::sees_next_token, "blocks.causality", "reference"},
      {Fault::drops_newest_key, "blocks.call_cuts", "reference"},
      {Fault::remembers_steps, "blocks.history", "reference"},
      {Fault::remembers_steps, "blocks.call_cuts", "reference"},
      {Fault::differs_by_thread, "blocks.threads", "reference"},
      {Fault::differs_by_run, "blocks.runs", "reference"},
      {Fault::forgets_to_reset, "blocks.surroundings", "reference"},
      {Fault::allocates, "blocks.no_allocation"},
      {Fault::none, "sketches.replay", "reference"},
      {Fault::none, "sketches.bound_f32", "reference"},
      {Fault::shifts_unchosen_vote, "sketches.bound_f32", "reference"},
      {Fault::misses_best_candidate, "sketches.replay", "reference"},
      {Fault::chooses_below_least, "sketches.replay", "reference"},
      {Fault::set_not_sorted, "sketches.replay", "reference"},
      {Fault::set_of_first_block, "sketches.replay", "reference"},
      {Fault::stale_sets, "sketches.replay", "reference"},
      {Fault::swaps_token_votes, "sketches.replay", "reference"},
      {Fault::swaps_heads, "sketches.head_permutation", "reference"},
      {Fault::sees_next_token, "sketches.causality", "reference"},
      {Fault::remembers_steps, "sketches.history", "reference"},
      {Fault::none, "abort.points", "reference"},
      {Fault::none, "abort.spoiled", "reference"},
      {Fault::none, "truncate.every_length", "reference"},
      {Fault::none, "truncate.chains", "reference"},
      {Fault::none, "interrupt.every_question", "reference"},
      {Fault::none, "lse.no_key", "reference"},
      {Fault::abort_keeps_sets, "abort.points", "reference"},
      {Fault::abort_keeps_sets, "abort.spoiled", "reference"},
      {Fault::abort_keeps_sets, "truncate.chains", "reference"},
      {Fault::abort_without_step, "abort.points", "reference"},
      {Fault::truncate_keeps_scores, "truncate.every_length", "reference"},
      {Fault::truncate_keeps_scores, "truncate.chains", "reference"},
      {Fault::truncate_keeps_scores, "truncate.wide", "reference"},
      {Fault::settles_late, "truncate.every_length", "reference"},
      {Fault::settles_late, "truncate.chains", "reference"},
      {Fault::settles_late, "truncate.checkpoints", "reference"},
      {Fault::settles_early, "truncate.every_length", "reference"},
      {Fault::settles_early, "truncate.full", "reference"},
      {Fault::remembers_steps, "abort.points", "reference"},
      {Fault::remembers_steps, "truncate.full", "reference"},
      {Fault::lse_without_sink, "lse.observed", "reference"},
      {Fault::lse_without_sink, "lse.no_key", "reference"},
      {Fault::lse_off_by_ulps, "lse.observed", "reference"},
      {Fault::interrupt_ignored, "interrupt.every_question", "reference"},
      {Fault::interrupt_ignored, "interrupt.going_on", "reference"},
      {Fault::interrupt_answer_lost, "interrupt.every_question", "reference"},
      {Fault::interrupt_asked_once, "interrupt.every_question", "reference"},
      {Fault::interrupt_on_other_thread, "interrupt.every_question", "reference"},
      {Fault::interrupt_outside, "interrupt.every_question", "reference"},
      {Fault::hides_a_claim, "state.unclaimed", "reference"},
      {Fault::none, "host_threads.no_others"},
      {Fault::ignores_host_threads, "host_threads.no_others"},
      {Fault::ignores_host_threads, "host_threads.faulty_hosts"},
      {Fault::none, "allocation.host_memory"},
      {Fault::ignores_host_memory, "allocation.host_memory"},
      {Fault::none, "allocation.estimate"},
      {Fault::estimates_too_little, "allocation.estimate"},
  };
  return all;
}

}  // namespace

bool run_self_test(std::ostream& to) {
  bool fine = true;
  for (const Trial& trial : trials()) {
    const auto test = std::find_if(all_cases().begin(), all_cases().end(),
                                   [&](const Case& candidate) { return candidate.name == trial.test; });
    if (test == all_cases().end()) {
      fmt::print(to, "FAIL       {} is no case\n", trial.test);
      fine = false;
      continue;
    }
    const std::unique_ptr<Engine> engine = faulty_engine(headwater::engine(trial.engine), trial.fault);
    const Result result = run_case(*test, engine.get(), Settings{});
    const Status wanted = trial.fault == Fault::none ? Status::pass : Status::fail;
    const bool found = result.status == wanted;
    fmt::print(to, "{:<10} {:<26} {:<32} {}\n", found ? "PASS" : "FAIL", fault_name(trial.fault), trial.test,
               result.message.substr(0, 100));
    fine = fine && found;
  }
  return fine;
}

}  // namespace headwater::conformance
