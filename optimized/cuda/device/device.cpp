#include "cuda/device/device.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace headwater::cuda {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "cuda: " + what);
}

}  // namespace

constexpr CurrentDevice Device::kOnlyOne{[] { return 0; }, [](int) { return true; }};

Device::Device(DeviceInfo info, std::span<const Kernel> kernels, const CurrentDevice& current)
    : info_(std::move(info)), kernels_(kernels), current_(current) {}

Device::MadeCurrent::MadeCurrent(const Device& device)
    : current_(device.current_), before_(current_.get()), changed_(before_ != device.info_.ordinal) {
  if (changed_ && !current_.set(device.info_.ordinal)) {
    throw Error(ErrorCode::internal,
                "cuda: device " + std::to_string(device.info_.ordinal) + " cannot be made the current one");
  }
}

Device::MadeCurrent::~MadeCurrent() {
  if (changed_) (void)current_.set(before_);
}

void Device::check() const {
  if (failed()) throw Error(ErrorCode::internal, failure_);
}

void Device::remember(const std::string& what) {
  if (!failed()) failure_ = "cuda: " + what;
}

void Device::fail(const std::string& what) {
  remember(what);
  throw Error(ErrorCode::internal, failure_);
}

void Device::hold_outside_capture(const char* what) const {
  check();
  if (capturing_)
    throw Error(ErrorCode::wrong_state, std::string("cuda: ") + what + " while a graph is captured");
}

// ---- memory ------------------------------------------------------------------------------------------------------

void Device::count_allocation(const char* what, std::int64_t bytes) {
  hold_outside_capture("an allocation");
  ++counters_.allocations;
  if (refused_in_ > 0 && --refused_in_ == 0) refuse_memory(what, bytes);
}

void Device::refuse_memory(const char* what, std::int64_t bytes) const {
  throw Error(ErrorCode::out_of_memory,
              std::string("cuda: no memory for ") + what +
                  (bytes > 0 ? " (" + std::to_string(bytes) + " bytes)" : std::string()) + " on " +
                  info_.name);
}

void* Device::allocate_counted(std::int64_t bytes, const char* what, bool pinned) {
  if (bytes <= 0) refuse(std::string(what) + ": " + std::to_string(bytes) + " bytes; allowed: at least 1");
  count_allocation(what, bytes);
  const MadeCurrent made(*this);
  void* data = do_allocate(bytes, pinned);
  if (data == nullptr) refuse_memory(what, bytes);
  do_name(data, bytes, what);
  return data;
}

void* Device::allocate(std::int64_t bytes, const char* what) { return allocate_counted(bytes, what, false); }

void* Device::allocate_pinned(std::int64_t bytes, const char* what) {
  return allocate_counted(bytes, what, true);
}

void Device::release(void* data) noexcept {
  if (data != nullptr) do_release(data);
}

void Device::copy(Stream stream, void* to, const void* from, std::int64_t bytes, Direction direction) {
  copy_rows(stream, {to, bytes}, {from, bytes}, bytes, 1, direction);
}

void Device::copy_rows(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes,
                       std::int64_t count, Direction direction) {
  check();
  if (bytes < 0 || count < 0 || (count > 1 && (to.pitch < bytes || from.pitch < bytes))) {
    refuse("copy of " + std::to_string(count) + " rows of " + std::to_string(bytes) + " bytes, " +
           std::to_string(from.pitch) + " and " + std::to_string(to.pitch) +
           " apart; allowed: rows that do not overlap");
  }
  if (bytes == 0 || count == 0) return;
  if (direction != Direction::device_to_device &&
      kind(direction == Direction::host_to_device ? from.data : to.data) == PointerKind::host) {
    hold_outside_capture("a copy of pageable memory");
    ++counters_.host_synchronisations;
  }
  const MadeCurrent made(*this);
  do_copy(stream, to, from, bytes, count, direction);
}

void Device::set(Stream stream, void* to, unsigned char value, std::int64_t bytes) {
  check();
  if (bytes < 0) refuse("set of " + std::to_string(bytes) + " bytes; allowed: 0 or more");
  if (bytes == 0) return;
  const MadeCurrent made(*this);
  do_set(stream, to, value, bytes);
}

// ---- order -------------------------------------------------------------------------------------------------------

Stream Device::stream(bool urgent) {
  count_allocation("a stream", 0);
  const MadeCurrent made(*this);
  return do_stream(urgent);
}

void Device::refuse_stream() const {
  refuse("stream is one of another device; allowed: a stream of device " + std::to_string(info_.ordinal) +
         ", where the session is, or null");
}

Stream Device::adopt(void* native) {
  check();
  const MadeCurrent made(*this);
  const Stream stream = do_adopt(native);
  require_uncaptured(stream);
  return stream;
}

void Device::require_uncaptured(Stream stream) {
  check();
  const MadeCurrent made(*this);
  if (do_captured(stream)) {
    refuse(
        "stream is being captured; allowed: one that is not, as a graph would repeat work at the same "
        "positions");
  }
}

Event Device::event(bool timed) {
  count_allocation("an event", 0);
  const MadeCurrent made(*this);
  return do_event(timed);
}

void Device::record(Event event, Stream stream) {
  check();
  const MadeCurrent made(*this);
  do_record(event, stream);
}

void Device::wait(Stream stream, Event event) {
  check();
  const MadeCurrent made(*this);
  do_wait(stream, event);
}

void Device::synchronize(Stream stream) {
  hold_outside_capture("a wait of the host");
  ++counters_.host_synchronisations;
  const MadeCurrent made(*this);
  do_synchronize(stream);
}

void Device::synchronize(Event event) {
  hold_outside_capture("a wait of the host");
  ++counters_.host_synchronisations;
  const MadeCurrent made(*this);
  do_synchronize(event);
}

// ---- kernels -----------------------------------------------------------------------------------------------------

const Kernel& Device::kernel(int index) const {
  if (index < 0 || static_cast<std::size_t>(index) >= kernels_.size()) {
    refuse("kernel " + std::to_string(index) + "; allowed: 0 .. " + std::to_string(kernels_.size() - 1));
  }
  return kernels_[static_cast<std::size_t>(index)];
}

const Kernel& Device::checked_launch(int index, Grid grid, int shared_bytes, int params_bytes) const {
  const Kernel& row = kernel(index);
  // Text is for refusals only: this is the hot path.
  const auto name = [&] { return std::string("kernel ") + row.name; };
  if (params_bytes != row.params_bytes) {
    refuse(name() + ": " + std::to_string(params_bytes) +
           " bytes of parameters; allowed: " + std::to_string(row.params_bytes));
  }
  if (shared_bytes < 0 || shared_bytes > info_.shared_limit) {
    refuse(name() + ": " + std::to_string(shared_bytes) + " bytes of shared memory; allowed on " +
           info_.name + ": 0 .. " + std::to_string(info_.shared_limit));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMostBlocksX || grid.y > kMostBlocksYZ ||
      grid.z > kMostBlocksYZ) {
    refuse(name() + ": grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
           std::to_string(grid.z) + " blocks; allowed: 1 .. 2147483647 x 65535 x 65535");
  }
  return row;
}

void Device::launch(Stream stream, int index, Grid grid, int shared_bytes, const void* params,
                    int params_bytes) {
  check();
  const Kernel& row = checked_launch(index, grid, shared_bytes, params_bytes);
  if (!capturing_) ++counters_.launches;
  const MadeCurrent made(*this);
  if (!profiling_ || capturing_) {
    do_launch(stream, row, grid, shared_bytes, params);
    return;
  }
  const Timed timed{stage_, &row, timed_event(), timed_event()};
  do_record(timed.begin, stream);
  do_launch(stream, row, grid, shared_bytes, params);
  do_record(timed.end, stream);
  timed_.push_back(timed);
}

const char* Device::encode(const sm90::TileMap& map, sm90::TensorMap& to) {
  check();
  constexpr int kFirstWithTensorMaps = 90;
  if (info_.compute_capability < kFirstWithTensorMaps)
    return "the device has no tensor maps (compute capability 9.0)";
  if (const char* reason = sm90::refusal(map)) return reason;
  const MadeCurrent made(*this);
  return do_encode(map, to);
}

Event Device::timed_event() {
  if (spare_events_.empty()) return event(true);
  const Event event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

std::vector<KernelTimes> Device::take_profile() {
  std::vector<KernelTimes> times;
  for (const Timed& timed : timed_) {
    synchronize(timed.end);
    const auto same = [&](const KernelTimes& row) {
      return row.stage == timed.stage && row.kernel == timed.kernel->name;
    };
    auto place = std::find_if(times.begin(), times.end(), same);
    if (place == times.end()) place = times.insert(times.end(), {timed.stage, timed.kernel->name, {}});
    place->milliseconds.push_back(milliseconds(timed.begin, timed.end));
    spare_events_.push_back(timed.begin);
    spare_events_.push_back(timed.end);
  }
  timed_.clear();
  return times;
}

void Device::begin_capture(Stream stream) {
  hold_outside_capture("a capture");
  const MadeCurrent made(*this);
  do_begin_capture(stream);
  capturing_ = true;
}

Graph Device::end_capture(Stream stream) {
  check();
  if (!capturing_) throw Error(ErrorCode::wrong_state, "cuda: end of a capture that was not begun");
  capturing_ = false;
  const MadeCurrent made(*this);
  const Graph graph = do_end_capture(stream);
  count_allocation("a graph", 0);
  return graph;
}

void Device::set_launch(Graph graph, int index, int kernel, Grid grid, int shared_bytes, const void* params,
                        int params_bytes) {
  hold_outside_capture("a change of a graph");
  const MadeCurrent made(*this);
  do_set_launch(graph, index, checked_launch(kernel, grid, shared_bytes, params_bytes), grid, shared_bytes,
                params);
}

void Device::leave_out(Graph graph, int index) {
  hold_outside_capture("a change of a graph");
  const MadeCurrent made(*this);
  do_leave_out(graph, index);
}

void Device::replay(Graph graph, Stream stream) {
  hold_outside_capture("a replay");
  ++counters_.replays;
  const MadeCurrent made(*this);
  do_replay(graph, stream);
}

}  // namespace headwater::cuda
