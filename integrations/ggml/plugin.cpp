// The tables of functions that ggml asks of a backend. One device of type ACCEL on the CPU's memory: the scheduler gives it the
// nodes that it supports, before the CPU, and copies nothing.

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "integrations/ggml/attention.hpp"
#include "integrations/ggml/host.hpp"
#include "integrations/ggml/node.hpp"
#include "integrations/ggml/settings.hpp"

namespace headwater::ggml {
namespace {

using Count = std::atomic<std::int64_t>;

/// Of the process. `declined` counts questions of the scheduler, which asks several times for a node.
struct Counters {
  Count sparse = 0, dense = 0;
  Count handed_back[kReasons] = {};
  Count declined[kReasons] = {};
  std::atomic<bool> unsaid = false;

  [[nodiscard]] std::string line() const {
    std::string text = "nodes: " + std::to_string(sparse) + " sparse, " + std::to_string(dense) + " dense";
    append(text, "; handed back:", handed_back);
    append(text, "; declined (times asked):", declined);
    return text;
  }

 private:
  static void append(std::string& text, const char* title, const Count (&counts)[kReasons]) {
    std::string found;
    for (int i = 0; i < kReasons; ++i) {
      if (counts[i] == 0) continue;
      found.append(found.empty() ? " " : ", ").append(name_of(static_cast<Reason>(i)));
      found.append(" ").append(std::to_string(counts[i]));
    }
    text.append(title).append(found.empty() ? " none" : found);
  }
};

struct State {
  Settings settings;
  bool declines_all = false;              // the settings were not understood
  std::atomic<std::int64_t> longest = 0;  // rows of the longest call that was asked about
  std::atomic<bool> failure_said = false;
  Counters counters;

  ~State() { report(); }
  void report() {
    if (!settings.quiet && counters.unsaid.exchange(false)) say("%s", counters.line().c_str());
  }
};
State state;

/// ggml's own kernel: the node alone in a graph, on a CPU backend of its own.
class OwnKernel {
 public:
  OwnKernel() = default;
  OwnKernel(const OwnKernel&) = delete;
  OwnKernel& operator=(const OwnKernel&) = delete;
  ~OwnKernel() {
    if (context_) host().ggml_free(context_);
    if (cpu_) host().ggml_backend_free(cpu_);
  }

  ggml_status run(ggml_tensor* node, int threads) {
    if (!open()) return GGML_STATUS_ALLOC_FAILED;
    if (set_threads_ && threads > 0) set_threads_(cpu_, threads);
    host().ggml_graph_clear(graph_);
    host().ggml_graph_add_node(graph_, node);
    return host().ggml_backend_graph_compute(cpu_, graph_);
  }

 private:
  bool open() {
    constexpr std::size_t kNodes = 1, kSlack = 1024;
    if (!cpu_) {
      cpu_ = host().ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
      const auto device = host().ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
      const auto registry = device ? host().ggml_backend_dev_backend_reg(device) : nullptr;
      void* const set = registry
                            ? host().ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads")
                            : nullptr;
      set_threads_ = reinterpret_cast<ggml_backend_set_n_threads_t>(set);
    }
    if (!context_) {
      const ggml_init_params params{host().ggml_graph_overhead_custom(kNodes, false) + kSlack, nullptr, true};
      context_ = host().ggml_init(params);
      if (context_) graph_ = host().ggml_new_graph_custom(context_, kNodes, false);
    }
    return cpu_ && graph_;
  }

  ggml_backend_t cpu_ = nullptr;
  ggml_backend_set_n_threads_t set_threads_ = nullptr;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
};

/// One of these for each context of the host, which uses it on one thread at a time.
struct Context {
  explicit Context(const Settings& settings) : attention(settings, 0) {}
  Attention attention;
  OwnKernel own;
  int threads = 0;
};

Context& context_of(ggml_backend_t backend) { return *static_cast<Context*>(backend->context); }

/// True where the node was computed; else its reason was counted.
bool attend(Context& context, const ggml_tensor* op) noexcept {
  Reason why = Reason::failed;
  try {
    const std::optional<Node> node = read_node(op, why);
    std::optional<Causal> causal;
    if (node && node->q->data && node->k->data && node->v->data && node->out->data && node->mask->data) {
      causal = read_mask(static_cast<const std::uint16_t*>(node->mask->data),
                         static_cast<std::int64_t>(node->mask->nb[1] / 2), node->rows, node->keys);
      if (!causal) why = Reason::not_causal;
    } else if (node) {
      why = Reason::layout;
    }
    if (causal) {
      why = Reason::failed;
      const Way way = context.attention.run(*node, *causal, state.longest);
      ++(way == Way::sparse ? state.counters.sparse : state.counters.dense);
      return true;
    }
  } catch (const std::exception& error) {
    if (!state.failure_said.exchange(true)) say("left to ggml, and so are others like it: %s", error.what());
  } catch (...) {
  }
  ++state.counters.handed_back[static_cast<int>(why)];
  return false;
}

// ---- Backend ----

const char* backend_name(ggml_backend_t) { return "Headwater"; }

void backend_free(ggml_backend_t backend) {
  delete static_cast<Context*>(backend->context);
  delete backend;
  state.report();
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  Context& context = context_of(backend);
  for (int i = 0; i < host().ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* const node = host().ggml_graph_node(graph, i);
    if (node->op != GGML_OP_FLASH_ATTN_EXT || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
    state.counters.unsaid = true;
    if (attend(context, node)) continue;
    const ggml_status status = context.own.run(node, context.threads);
    if (status != GGML_STATUS_SUCCESS) return status;
  }
  return GGML_STATUS_SUCCESS;
}

void backend_set_threads(ggml_backend_t backend, int threads) {
  Context& context = context_of(backend);
  context.threads = std::clamp(threads, 0, 512);
  context.attention.set_threads(context.threads);
}

ggml_guid_t guid() {
  static ggml_guid id = {0x68, 0x65, 0x61, 0x64, 0x77, 0x61, 0x74, 0x65,
                         0x72, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x00, 0x01};
  return &id;
}

// ---- Device ----

const char* device_name(ggml_backend_dev_t) { return "Headwater"; }
const char* device_description(ggml_backend_dev_t) { return "sparse prefill attention on the CPU"; }
void device_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = device_name(device);
  props->description = device_description(device);
  props->type = device_type(device);
  device_memory(device, &props->memory_free, &props->memory_total);
  props->caps = {};
  props->caps.buffer_from_host_ptr = true;
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char*) {
  try {
    ggml_backend_i functions{};
    functions.get_name = backend_name;
    functions.free = backend_free;
    functions.graph_compute = backend_compute;
    auto context = std::make_unique<Context>(state.settings);
    return new ggml_backend{guid(), functions, device, context.release()};
  } catch (const std::exception& error) {
    say("no backend: %s", error.what());
    return nullptr;
  }
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
  return host().ggml_backend_cpu_buffer_type();
}

ggml_backend_buffer_t device_buffer_of(ggml_backend_dev_t, void* memory, std::size_t size, std::size_t) {
  return host().ggml_backend_cpu_buffer_from_ptr(memory, size);
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE: return true;  // nothing is computed
    case GGML_OP_FLASH_ATTN_EXT: break;
    default: return false;
  }
  if (state.declines_all) return false;
  Reason why = Reason::none;
  const std::optional<Node> node = read_node(op, why);
  if (!node) {
    ++state.counters.declined[static_cast<int>(why)];
    return false;
  }
  std::int64_t longest = state.longest;
  while (longest < node->rows && !state.longest.compare_exchange_weak(longest, node->rows)) {
  }
  return true;
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return host().ggml_backend_buft_is_host(type);
}

// ---- Registry ----

/// What a host may ask for by name "headwater_ggml_counters": one line, in the caller's memory.
void counters_line(char* line, std::size_t size) {
  if (size > 0) std::snprintf(line, size, "%s", state.counters.line().c_str());
}

const char* registry_name(ggml_backend_reg_t) { return "Headwater"; }
std::size_t registry_devices(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, std::size_t) {
  static ggml_backend_device device = [&] {
    ggml_backend_device made{};
    made.iface.get_name = device_name;
    made.iface.get_description = device_description;
    made.iface.get_memory = device_memory;
    made.iface.get_type = device_type;
    made.iface.get_props = device_props;
    made.iface.init_backend = device_init;
    made.iface.get_buffer_type = device_buffer_type;
    made.iface.buffer_from_host_ptr = device_buffer_of;
    made.iface.supports_op = device_supports_op;
    made.iface.supports_buft = device_supports_buft;
    made.reg = registry;
    return made;
  }();
  return &device;
}

void* registry_function(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0)
    return reinterpret_cast<void*>(backend_set_threads);
  if (std::strcmp(name, "headwater_ggml_counters") == 0) return reinterpret_cast<void*>(counters_line);
  return nullptr;
}

ggml_backend_reg registry = {
    GGML_BACKEND_API_VERSION,
    {registry_name, registry_devices, registry_device, registry_function},
    nullptr,
};

void read_environment() {
  const char* const text = std::getenv("HEADWATER_GGML");
  std::string why;
  if (text && !parse_settings(text, state.settings, why)) {
    state.declines_all = true;
    say("takes nothing: %s", why.c_str());
    return;
  }
  const Engine& engine = headwater::engine();
  const Claims claims = engine.claims();
  if (!claims.stored_rows || !claims.rows_alone) {
    throw Error(ErrorCode::unsupported, "engine " + std::string(engine.name()) +
                                            " reads no rows of the caller; allowed: one of the cpu engines");
  }
  Shape shape;
  shape.capacity = 1;
  (void)engine.open(shape,
                    options_of(state.settings));  // refuses what it does not take, now and not for each node
  if (state.settings.quiet) return;
  const Settings& s = state.settings;
  const std::string name(engine.name());
  if (s.dense) {
    say("version %s, engine %s: dense attention of calls of %" PRId64 " rows or more", kVersion, name.c_str(),
        kLeastRows);
  } else {
    say("version %s, engine %s: attention of calls of %" PRId64 " rows or more; sparse, with %" PRId64
        " keys and a chunk of %" PRId64 ", beyond %" PRId64 " tokens",
        kVersion, name.c_str(), kLeastRows, s.memory, s.chunk, s.dense_below);
  }
}

ggml_backend_reg_t start(const void* caller) noexcept {
  try {
    if (!find_host(caller)) return nullptr;
    static bool once = false;  // ggml loads its backends on one thread
    if (!once) read_environment();
    once = true;
    return &registry;
  } catch (const std::exception& error) {
    say("not used: %s", error.what());
    return nullptr;
  }
}

}  // namespace
}  // namespace headwater::ggml

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  return headwater::ggml::start(__builtin_return_address(0));
}
