#include "cuda/device/cuda_device.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace headwater::cuda {
namespace {

/// Wrong use and refused memory leave the context as it was; everything else is its end.
bool passes(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotReady:
    case cudaErrorNotPermitted:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread: return true;
    default: return false;
  }
}

std::string text_of(const char* call, cudaError_t error) {
  return std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

DeviceInfo info_of(int ordinal) {
  if (const std::string reason = cuda_unavailable_because(ordinal); !reason.empty()) {
    throw Error(ErrorCode::engine_unavailable, "cuda: " + reason);
  }
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal); error != cudaSuccess) {
    throw Error(ErrorCode::engine_unavailable, "cuda: " + text_of("cudaGetDeviceProperties", error));
  }
  DeviceInfo info;
  info.name = properties.name;
  info.ordinal = ordinal;
  info.compute_capability = 10 * properties.major + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.shared_limit = static_cast<int>(properties.sharedMemPerBlockOptin);
  info.memory = static_cast<std::int64_t>(properties.totalGlobalMem);
  return info;
}

constexpr CurrentDevice kCurrent{cuda_current_device,
                                 [](int ordinal) { return cudaSetDevice(ordinal) == cudaSuccess; }};

cudaMemcpyKind kind_of(Direction direction) {
  switch (direction) {
    case Direction::host_to_device: return cudaMemcpyHostToDevice;
    case Direction::device_to_host: return cudaMemcpyDeviceToHost;
    case Direction::device_to_device: return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

/// A function of the driver by the runtime's table: the library is not linked to libcuda. Null where the driver has none.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kIntroduced = 12000;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kIntroduced,
                                                             cudaEnableDefault, &found);
#else
  static_assert(CUDART_VERSION >= kIntroduced, "tensor maps came with CUDA 12.0");
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  (void)cudaGetLastError();
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::span<const Kernel> kernels, int ordinal);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override;

  PointerKind kind(const void* data) override;
  float milliseconds(Event from, Event to) override;
  void* native_handle(Stream stream) override { return native(stream); }

 protected:
  void* do_allocate(std::int64_t bytes, bool pinned) override;
  void do_release(void* data) noexcept override;
  void do_copy(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes, std::int64_t count,
               Direction direction) override;
  void do_set(Stream stream, void* to, unsigned char value, std::int64_t bytes) override;
  Stream do_stream(bool urgent) override;
  Stream do_adopt(void* native) override;
  bool do_captured(Stream stream) override;
  Event do_event(bool timed) override;
  void do_record(Event event, Stream stream) override;
  void do_wait(Stream stream, Event event) override;
  void do_synchronize(Stream stream) override;
  void do_synchronize(Event event) override;
  void do_launch(Stream stream, const Kernel& kernel, Grid grid, int shared_bytes,
                 const void* params) override;
  const char* do_encode(const sm90::TileMap& map, sm90::TensorMap& to) override;
  void do_begin_capture(Stream stream) override;
  Graph do_end_capture(Stream stream) override;
  void do_replay(Graph graph, Stream stream) override;
  void do_set_launch(Graph graph, int index, const Kernel& kernel, Grid grid, int shared_bytes,
                     const void* params) override;
  void do_leave_out(Graph graph, int index) override;

 private:
  /// What is replayed, what it was made from (whose nodes name its launches), and its launches in their order.
  struct Captured {
    cudaGraphExec_t made = nullptr;
    cudaGraph_t source = nullptr;
    std::vector<cudaGraphNode_t> launches;
    std::vector<bool> left_out;  // by launch
  };
  [[nodiscard]] Captured& captured(Graph graph);
  [[nodiscard]] static std::size_t launch_of(const Captured& graph, int index);
  void note_captured_launch(cudaStream_t stream);
  struct Allocation {
    void* data;
    bool pinned;
  };
  void hold(cudaError_t error, const char* call);
  [[nodiscard]] bool captures(cudaStream_t stream);
  [[nodiscard]] cudaStream_t native(Stream stream) const;
  [[nodiscard]] cudaEvent_t native(Event event) const;

  void release_all() noexcept;

  decltype(&cuTensorMapEncodeTiled) encode_ = nullptr;
  std::vector<Allocation> allocations_;
  std::vector<cudaStream_t> streams_;
  std::vector<bool> owned_;  // by stream
  std::vector<cudaEvent_t> events_;
  std::vector<Captured> graphs_;
  Captured capture_;  // the open one's launches
};

CudaDevice::CudaDevice(std::span<const Kernel> kernels, int ordinal)
    : Device(info_of(ordinal), kernels, kCurrent) {
  const MadeCurrent made(*this);
  encode_ = encode_function();
  for (const Kernel& kernel : kernels) {
    if (kernel.gpu == nullptr) {
      throw Error(ErrorCode::internal,
                  std::string("cuda: kernel ") + kernel.name + " has no device function in its row");
    }
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.gpu);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
      (void)cudaGetLastError();
      // Kernels for a newer architecture only are rows of the same table; a launch of them is refused.
      continue;
    }
    hold(error, "cudaFuncGetAttributes");
    const int dynamic = info().shared_limit - static_cast<int>(attributes.sharedSizeBytes);
    hold(cudaFuncSetAttribute(kernel.gpu, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic),
         "cudaFuncSetAttribute");
  }
}

CudaDevice::~CudaDevice() {
  // Of a context that a kernel has broken every call fails; what it held goes with the process.
  try {
    const MadeCurrent made(*this);
    release_all();
  } catch (const Error&) {
  }
}

void CudaDevice::release_all() noexcept {
  // An adopted stream may be gone already; freeing memory waits for what still uses it.
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (owned_[i]) (void)cudaStreamSynchronize(streams_[i]);
  }
  for (const Captured& graph : graphs_) {
    (void)cudaGraphExecDestroy(graph.made);
    (void)cudaGraphDestroy(graph.source);
  }
  for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (owned_[i]) (void)cudaStreamDestroy(streams_[i]);
  }
  for (const Allocation& allocation : allocations_) {
    (void)(allocation.pinned ? cudaFreeHost(allocation.data) : cudaFree(allocation.data));
  }
  (void)cudaGetLastError();
}

void CudaDevice::hold(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  const std::string text = text_of(call, error);
  if (!passes(error)) fail(text);
  throw Error(error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::invalid_argument,
              "cuda: " + text);
}

cudaStream_t CudaDevice::native(Stream stream) const {
  const auto index = static_cast<std::size_t>(stream);
  if (index >= streams_.size()) {
    throw Error(ErrorCode::invalid_argument, "cuda: no stream " + std::to_string(static_cast<int>(stream)));
  }
  return streams_[index];
}

cudaEvent_t CudaDevice::native(Event event) const {
  const auto index = static_cast<std::size_t>(event);
  if (index >= events_.size()) {
    throw Error(ErrorCode::invalid_argument, "cuda: no event " + std::to_string(static_cast<int>(event)));
  }
  return events_[index];
}

PointerKind CudaDevice::kind(const void* data) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    (void)cudaGetLastError();
    return PointerKind::host;
  }
  switch (attributes.type) {
    case cudaMemoryTypeHost: return PointerKind::pinned;
    case cudaMemoryTypeManaged: return PointerKind::managed;
    case cudaMemoryTypeDevice:
      return attributes.device == info().ordinal ? PointerKind::device : PointerKind::elsewhere;
    default: return PointerKind::host;
  }
}

float CudaDevice::milliseconds(Event from, Event to) {
  check();
  float elapsed = 0;
  hold(cudaEventElapsedTime(&elapsed, native(from), native(to)), "cudaEventElapsedTime");
  return elapsed;
}

void* CudaDevice::do_allocate(std::int64_t bytes, bool pinned) {
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  allocations_.reserve(allocations_.size() + 1);
  const cudaError_t error =
      pinned ? cudaHostAlloc(&data, size, cudaHostAllocDefault) : cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  hold(error, pinned ? "cudaHostAlloc" : "cudaMalloc");
  allocations_.push_back({data, pinned});
  return data;
}

void CudaDevice::do_release(void* data) noexcept {
  for (Allocation& allocation : allocations_) {
    if (allocation.data != data) continue;
    (void)(allocation.pinned ? cudaFreeHost(data) : cudaFree(data));
    (void)cudaGetLastError();
    allocation = allocations_.back();
    allocations_.pop_back();
    return;
  }
}

void CudaDevice::do_copy(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes,
                         std::int64_t count, Direction direction) {
  const auto width = static_cast<std::size_t>(bytes);
  if (count == 1 || (to.pitch == bytes && from.pitch == bytes)) {
    hold(cudaMemcpyAsync(to.data, from.data, width * static_cast<std::size_t>(count), kind_of(direction),
                         native(stream)),
         "cudaMemcpyAsync");
    return;
  }
  hold(cudaMemcpy2DAsync(to.data, static_cast<std::size_t>(to.pitch), from.data,
                         static_cast<std::size_t>(from.pitch), width, static_cast<std::size_t>(count),
                         kind_of(direction), native(stream)),
       "cudaMemcpy2DAsync");
}

void CudaDevice::do_set(Stream stream, void* to, unsigned char value, std::int64_t bytes) {
  hold(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), native(stream)), "cudaMemsetAsync");
}

Stream CudaDevice::do_stream(bool urgent) {
  int least = 0;
  int greatest = 0;
  hold(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  streams_.reserve(streams_.size() + 1);
  owned_.reserve(owned_.size() + 1);
  cudaStream_t made = nullptr;
  hold(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, urgent ? greatest : least),
       "cudaStreamCreateWithPriority");
  streams_.push_back(made);
  owned_.push_back(true);
  return static_cast<Stream>(streams_.size() - 1);
}

Stream CudaDevice::do_adopt(void* native_stream) {
  auto* const stream = static_cast<cudaStream_t>(native_stream);
  if (stream != nullptr && !captures(stream)) {
    // An event is recorded on streams of its own device only (CUDA C++ Programming Guide, multi-device system).
    cudaEvent_t probe = nullptr;
    hold(cudaEventCreateWithFlags(&probe, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    const cudaError_t error = cudaEventRecord(probe, stream);
    (void)cudaEventDestroy(probe);
    if (error == cudaErrorInvalidResourceHandle) {
      (void)cudaGetLastError();
      refuse_stream();
    }
    hold(error, "cudaEventRecord");
  }
  streams_.push_back(stream);
  owned_.push_back(false);
  return static_cast<Stream>(streams_.size() - 1);
}

bool CudaDevice::captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    // The default stream, while another one is captured.
    (void)cudaGetLastError();
    return true;
  }
  hold(error, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

bool CudaDevice::do_captured(Stream stream) { return captures(native(stream)); }

Event CudaDevice::do_event(bool timed) {
  events_.reserve(events_.size() + 1);
  cudaEvent_t made = nullptr;
  hold(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming),
       "cudaEventCreateWithFlags");
  events_.push_back(made);
  return static_cast<Event>(events_.size() - 1);
}

void CudaDevice::do_record(Event event, Stream stream) {
  hold(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
}

void CudaDevice::do_wait(Stream stream, Event event) {
  hold(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
}

void CudaDevice::do_synchronize(Stream stream) {
  hold(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
}

void CudaDevice::do_synchronize(Event event) {
  hold(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
}

void CudaDevice::do_launch(Stream stream, const Kernel& kernel, Grid grid, int shared_bytes,
                           const void* params) {
  void* arguments[] = {const_cast<void*>(params)};  // NOLINT: read only, as cudaLaunchKernel copies them
  const dim3 blocks(grid.x, grid.y, grid.z);
  const dim3 threads(static_cast<unsigned>(kernel.threads));
  hold(cudaLaunchKernel(kernel.gpu, blocks, threads, arguments, static_cast<std::size_t>(shared_bytes),
                        native(stream)),
       kernel.name);
  if (capturing()) note_captured_launch(native(stream));
}

// The node that the capture has just made is what the stream's next one will wait for.
void CudaDevice::note_captured_launch(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* waits = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &waits, nullptr, &count);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &waits, &count);
#endif
  hold(error, "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive || count != 1) {
    throw Error(ErrorCode::internal, "cuda: a captured launch left " + std::to_string(count) +
                                         " nodes to wait for; expected: its own");
  }
  capture_.launches.push_back(waits[0]);
}

const char* CudaDevice::do_encode(const sm90::TileMap& map, sm90::TensorMap& to) {
  static_assert(sizeof(CUtensorMap) == sizeof(sm90::TensorMap) &&
                alignof(CUtensorMap) <= alignof(sm90::TensorMap));
  if (encode_ == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  const sm90::EncodeArguments arguments = sm90::encode_arguments(map);
  const CUresult result =
      encode_(reinterpret_cast<CUtensorMap*>(to.bytes), CU_TENSOR_MAP_DATA_TYPE_UINT16, arguments.kRank,
              const_cast<void*>(arguments.address), arguments.sizes, arguments.strides, arguments.box,
              arguments.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver refused the tensor map";
}

void CudaDevice::do_begin_capture(Stream stream) {
  capture_ = {};
  hold(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

Graph CudaDevice::do_end_capture(Stream stream) {
  graphs_.reserve(graphs_.size() + 1);
  capture_.left_out.assign(capture_.launches.size(), false);
  hold(cudaStreamEndCapture(native(stream), &capture_.source), "cudaStreamEndCapture");
  const cudaError_t error = cudaGraphInstantiate(&capture_.made, capture_.source, 0);
  if (error != cudaSuccess) (void)cudaGraphDestroy(capture_.source);
  hold(error, "cudaGraphInstantiate");
  graphs_.push_back(std::move(capture_));
  return static_cast<Graph>(graphs_.size() - 1);
}

CudaDevice::Captured& CudaDevice::captured(Graph graph) {
  const auto index = static_cast<std::size_t>(graph);
  if (index >= graphs_.size()) {
    throw Error(ErrorCode::invalid_argument, "cuda: no graph " + std::to_string(static_cast<int>(graph)));
  }
  return graphs_[index];
}

std::size_t CudaDevice::launch_of(const Captured& graph, int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= graph.launches.size()) {
    throw Error(ErrorCode::invalid_argument, "cuda: no launch " + std::to_string(index) + " in a graph of " +
                                                 std::to_string(graph.launches.size()));
  }
  return static_cast<std::size_t>(index);
}

void CudaDevice::do_replay(Graph graph, Stream stream) {
  hold(cudaGraphLaunch(captured(graph).made, native(stream)), "cudaGraphLaunch");
}

void CudaDevice::do_set_launch(Graph graph, int index, const Kernel& kernel, Grid grid, int shared_bytes,
                               const void* params) {
  Captured& place = captured(graph);
  const std::size_t launch = launch_of(place, index);
  void* arguments[] = {const_cast<void*>(params)};  // NOLINT: read only, as they are copied
  cudaKernelNodeParams node{};
  node.func = const_cast<void*>(kernel.gpu);  // NOLINT: a function's name
  node.gridDim = dim3(grid.x, grid.y, grid.z);
  node.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  node.sharedMemBytes = static_cast<unsigned>(shared_bytes);
  node.kernelParams = arguments;
  hold(cudaGraphExecKernelNodeSetParams(place.made, place.launches[launch], &node), kernel.name);
  if (!place.left_out[launch]) return;
  hold(cudaGraphNodeSetEnabled(place.made, place.launches[launch], 1), "cudaGraphNodeSetEnabled");
  place.left_out[launch] = false;
}

void CudaDevice::do_leave_out(Graph graph, int index) {
  Captured& place = captured(graph);
  const std::size_t launch = launch_of(place, index);
  if (place.left_out[launch]) return;
  hold(cudaGraphNodeSetEnabled(place.made, place.launches[launch], 0), "cudaGraphNodeSetEnabled");
  place.left_out[launch] = true;
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(std::span<const Kernel> kernels, int ordinal) {
  return std::make_unique<CudaDevice>(kernels, ordinal);
}

}  // namespace headwater::cuda
