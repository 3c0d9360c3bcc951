#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/kernels/platform/kernel.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {

/// Handles belong to the Device that made them and live as long as it does.
enum class Stream : int {};
enum class Event : int {};
enum class Graph : int {};

enum class Direction { host_to_device, device_to_host, device_to_device };

enum class PointerKind {
  host,       ///< pageable, or unknown to the driver
  pinned,     ///< page-locked host memory
  managed,    ///< migrates between host and device
  device,     ///< of this device
  elsewhere,  ///< of another device
};

struct DeviceInfo {
  std::string name;
  int ordinal = 0;
  int compute_capability = 0;  ///< 80, 90, ..
  int multiprocessors = 0;
  int shared_limit = 0;     ///< most dynamic shared memory of one block, bytes
  std::int64_t memory = 0;  ///< bytes
  bool emulated = false;
};

/// What happened on a device since it was opened. A hot path takes the difference of two readings.
struct Counters {
  std::int64_t allocations = 0;  ///< device and pinned host memory, streams, events, graphs
  std::int64_t host_synchronisations =
      0;                      ///< waits of the host; a copy from or to pageable memory may wait: counted
  std::int64_t launches = 0;  ///< kernels, those of a replayed graph not counted
  std::int64_t replays = 0;
};

/// What each launch of a kernel took in a stage, in the order of the launches.
struct KernelTimes {
  std::string stage;
  std::string kernel;
  std::vector<float> milliseconds;
};

/// Of the calling host thread, as cudaGetDevice() and cudaSetDevice() have it.
struct CurrentDevice {
  int (*get)();
  bool (*set)(int ordinal);  ///< false: it cannot be used
};

/// Bytes in rows: row i begins at data + i * pitch.
template <class Byte>
struct Rows {
  Byte* data;
  std::int64_t pitch;
};

/// A GPU or its emulation: memory, order and launches. Everything is asynchronous on a stream unless said otherwise;
/// memory given to an operation must stay until the stream has got there.
///
/// Errors: every member may throw Error. A failure of the device itself (a fault in a kernel, a lost device) is sticky: it
/// is thrown by whatever call notices it and by every later one (internal, with the first text). Refused memory
/// (out_of_memory) and wrong arguments (invalid_argument) leave the device as it was. The destructor waits for what is
/// under way, releases all that was not released, and never throws. One host thread at a time.
///
/// The calling thread's current device is the same before and after every member, constructor and destructor, also when they
/// throw: an operation makes its device the current one for as long as it takes.
class Device {
 public:
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  [[nodiscard]] const Counters& counters() const { return counters_; }
  /// Throws the sticky error if there is one.
  void check() const;
  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  /// Tests: the n-th allocation from now (1: the next) is refused; 0: none.
  void refuse_allocation(std::int64_t n) { refused_in_ = n; }

  // -- memory --------------------------------------------------------------------------------------------------
  /// `bytes` > 0 on 256-byte alignment, not initialised; `what` names it in the error. Errors: out_of_memory.
  [[nodiscard]] void* allocate(std::int64_t bytes, const char* what);
  [[nodiscard]] void* allocate_pinned(std::int64_t bytes, const char* what);
  /// Memory of either kind; waits until no operation uses it. Null is allowed.
  void release(void* data) noexcept;
  /// `bytes` at `data` are a buffer of their own within an allocation, all of whose buffers are to be named: the emulation
  /// then holds accesses to it. Nothing else happens.
  void name_part(const void* data, std::int64_t bytes, const char* what) { do_name(data, bytes, what); }
  [[nodiscard]] virtual PointerKind kind(const void* data) = 0;

  void copy(Stream stream, void* to, const void* from, std::int64_t bytes, Direction direction);
  /// `count` rows of `bytes` each.
  void copy_rows(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes, std::int64_t count,
                 Direction direction);
  void set(Stream stream, void* to, unsigned char value, std::int64_t bytes);

  // -- order ---------------------------------------------------------------------------------------------------
  /// A new stream that does not wait for the default one; urgent: its blocks are taken first.
  [[nodiscard]] Stream stream(bool urgent = false);
  /// The caller's own cudaStream_t, which stays the caller's; null: the default stream of this device. A stream of another
  /// device, or one that is being captured, is invalid_argument.
  [[nodiscard]] Stream adopt(void* native);
  /// Throws Error(invalid_argument) while what is enqueued on `stream` is kept for a graph, by whomever.
  void require_uncaptured(Stream stream);
  /// A stream of this device as adopt() takes it.
  [[nodiscard]] virtual void* native_handle(Stream stream) = 0;
  [[nodiscard]] Event event(bool timed = false);
  void record(Event event, Stream stream);
  /// What is enqueued on `stream` from now on begins after what `event` recorded last.
  void wait(Stream stream, Event event);
  /// The host waits.
  void synchronize(Stream stream);
  void synchronize(Event event);
  /// Between two timed events that have happened. Emulation: 0.
  [[nodiscard]] virtual float milliseconds(Event from, Event to) = 0;

  // -- kernels -------------------------------------------------------------------------------------------------
  /// Row `kernel` of the table that the device was opened with, with its block size. `params` is copied.
  template <class Params>
  void launch(Stream stream, int kernel, Grid grid, int shared_bytes, const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    launch(stream, kernel, grid, shared_bytes, &params, static_cast<int>(sizeof(Params)));
  }
  [[nodiscard]] const Kernel& kernel(int index) const;
  /// The map as kernels of sm_90a take it in their parameters; nothing is enqueued, so also while a graph is captured.
  /// Returns null, or why there is no such map (static text): other kernels are to be taken.
  [[nodiscard]] const char* encode(const sm90::TileMap& map, sm90::TensorMap& to);

  /// What is enqueued on `stream`, and on streams that wait for events recorded there, is kept instead of done, until
  /// end_capture on the same stream. All of it must have been joined to that stream by events. No host waits, no
  /// allocations, and no pageable memory in between.
  void begin_capture(Stream stream);
  [[nodiscard]] Graph end_capture(Stream stream);
  void replay(Graph graph, Stream stream);
  /// Launch `index` of a graph, counted in the order of the calls that were captured, from the next replay on: another
  /// kernel, grid and parameters in the same place of the order. It takes part again if it was left out.
  template <class Params>
  void set_launch(Graph graph, int index, int kernel, Grid grid, int shared_bytes, const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    set_launch(graph, index, kernel, grid, shared_bytes, &params, static_cast<int>(sizeof(Params)));
  }
  /// Launch `index` is left out of the replays from now on.
  void leave_out(Graph graph, int index);

  /// Benchmarks: from now on each launch stands between two timed events (or no longer). Launches of graphs do not.
  void profile(bool on) { profiling_ = on; }
  /// The next launches are part of this stage, a text that stays.
  void profile_stage(const char* stage) { stage_ = stage; }
  /// By stage and kernel, of the launches since the last call; the host waits for them.
  [[nodiscard]] std::vector<KernelTimes> take_profile();

 protected:
  /// `current`: of a kind of device of which there is one, nothing.
  Device(DeviceInfo info, std::span<const Kernel> kernels, const CurrentDevice& current = kOnlyOne);

  /// While it lives the device is the current one; then that which was.
  class MadeCurrent {
   public:
    explicit MadeCurrent(const Device& device);
    MadeCurrent(const MadeCurrent&) = delete;
    MadeCurrent& operator=(const MadeCurrent&) = delete;
    ~MadeCurrent();

   private:
    const CurrentDevice& current_;
    int before_;
    bool changed_;
  };

  virtual void* do_allocate(std::int64_t bytes, bool pinned) = 0;  // null: none left
  /// A whole allocation, or a part of one.
  virtual void do_name(const void* /*data*/, std::int64_t /*bytes*/, const char* /*what*/) {}
  virtual void do_release(void* data) noexcept = 0;
  virtual void do_copy(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes,
                       std::int64_t count, Direction direction) = 0;
  virtual void do_set(Stream stream, void* to, unsigned char value, std::int64_t bytes) = 0;
  virtual Stream do_stream(bool urgent) = 0;
  virtual Stream do_adopt(void* native) = 0;
  virtual bool do_captured(Stream stream) = 0;
  virtual Event do_event(bool timed) = 0;
  virtual void do_record(Event event, Stream stream) = 0;
  virtual void do_wait(Stream stream, Event event) = 0;
  virtual void do_synchronize(Stream stream) = 0;
  virtual void do_synchronize(Event event) = 0;
  virtual void do_launch(Stream stream, const Kernel& kernel, Grid grid, int shared_bytes,
                         const void* params) = 0;
  virtual const char* do_encode(const sm90::TileMap& map, sm90::TensorMap& to) = 0;
  virtual void do_begin_capture(Stream stream) = 0;
  virtual Graph do_end_capture(Stream stream) = 0;
  virtual void do_replay(Graph graph, Stream stream) = 0;
  virtual void do_set_launch(Graph graph, int index, const Kernel& kernel, Grid grid, int shared_bytes,
                             const void* params) = 0;
  virtual void do_leave_out(Graph graph, int index) = 0;
  [[nodiscard]] bool capturing() const { return capturing_; }
  [[noreturn]] void refuse_stream() const;

  /// Makes `what` the sticky error and throws it.
  [[noreturn]] void fail(const std::string& what);
  /// Only the first half of that.
  void remember(const std::string& what);

 private:
  static const CurrentDevice kOnlyOne;

  void* allocate_counted(std::int64_t bytes, const char* what, bool pinned);
  void count_allocation(const char* what, std::int64_t bytes);
  [[noreturn]] void refuse_memory(const char* what, std::int64_t bytes) const;
  void hold_outside_capture(const char* what) const;
  Event timed_event();
  void launch(Stream stream, int kernel, Grid grid, int shared_bytes, const void* params, int params_bytes);
  void set_launch(Graph graph, int index, int kernel, Grid grid, int shared_bytes, const void* params,
                  int params_bytes);
  /// The row, if the rest is allowed.
  [[nodiscard]] const Kernel& checked_launch(int kernel, Grid grid, int shared_bytes, int params_bytes) const;

  DeviceInfo info_;
  std::span<const Kernel> kernels_;
  const CurrentDevice& current_;
  Counters counters_;
  std::string failure_;
  std::int64_t refused_in_ = 0;
  bool capturing_ = false;
  bool profiling_ = false;
  const char* stage_ = "";
  struct Timed {
    const char* stage;
    const Kernel* kernel;
    Event begin;
    Event end;
  };
  std::vector<Timed> timed_;
  std::vector<Event> spare_events_;
};

}  // namespace headwater::cuda
