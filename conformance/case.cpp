#include "conformance/case.hpp"

#include <algorithm>

#include "conformance/worse.hpp"

namespace headwater::conformance {
namespace {

std::vector<Case>& registry() {
  static std::vector<Case> cases;
  return cases;
}

}  // namespace

const char* lane_name(Lane lane) {
  switch (lane) {
    case Lane::exact: return "exact";
    case Lane::bound: return "bound";
    case Lane::adversarial: return "adversarial";
    case Lane::bias: return "bias";
    case Lane::replay: return "replay";
    case Lane::determinism: return "determinism";
    case Lane::law: return "law";
    case Lane::hostile: return "hostile";
    case Lane::state: return "state";
    case Lane::shape: return "shape";
  }
  return "?";
}

const char* status_name(Status status) {
  switch (status) {
    case Status::pass: return "PASS";
    case Status::fail: return "FAIL";
    case Status::skip: return "SKIP";
    case Status::mistrusted: return "MISTRUSTED";
    case Status::waived: return "WAIVED";
  }
  return "?";
}

void Context::measured(std::string_view stage, std::string_view dtype, double ratio, double bound,
                       double signal) {
  auto known = std::find_if(errors_.begin(), errors_.end(), [&](const StageError& error) {
    return error.stage == stage && error.dtype == dtype;
  });
  if (known == errors_.end()) {
    known = errors_.insert(known, {std::string(stage), std::string(dtype), ratio, 0.0, 0.0});
  }
  known->ratio = worse_of(known->ratio, ratio);
  known->bounds += bound;
  known->signals += signal;
}

std::string Context::mistrusted() const {
  const auto found = std::find_if(errors_.begin(), errors_.end(), [](const StageError& error) {
    return error.bounds > 0.0 && error.bounds >= error.signals;
  });
  return found == errors_.end() ? "" : found->stage + " " + found->dtype;
}

Register::Register(Case entry) { registry().push_back(std::move(entry)); }

const std::vector<Case>& all_cases() {
  static const bool sorted = [] {
    std::sort(registry().begin(), registry().end(),
              [](const Case& a, const Case& b) { return a.name < b.name; });
    return true;
  }();
  (void)sorted;
  return registry();
}

}  // namespace headwater::conformance
