#pragma once

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

namespace headwater::ggml {

/// What is called of ggml.
#define HEADWATER_GGML_FUNCTIONS(X)   \
  X(ggml_version)                     \
  X(ggml_init)                        \
  X(ggml_free)                        \
  X(ggml_new_graph_custom)            \
  X(ggml_graph_overhead_custom)       \
  X(ggml_graph_clear)                 \
  X(ggml_graph_add_node)              \
  X(ggml_graph_n_nodes)               \
  X(ggml_graph_node)                  \
  X(ggml_get_type_traits)             \
  X(ggml_backend_cpu_buffer_type)     \
  X(ggml_backend_cpu_buffer_from_ptr) \
  X(ggml_backend_buft_is_host)        \
  X(ggml_backend_init_by_type)        \
  X(ggml_backend_free)                \
  X(ggml_backend_graph_compute)       \
  X(ggml_backend_dev_by_type)         \
  X(ggml_backend_dev_backend_reg)     \
  X(ggml_backend_reg_get_proc_address)

/// ggml's functions, as the process has them that loaded the plug-in. They are not linked: a Python process keeps the symbols
/// of its libraries to itself, and of two copies of ggml only one is the right one.
struct Host {
#define X(name) decltype(&::name) name = nullptr;
  HEADWATER_GGML_FUNCTIONS(X)
#undef X
};

/// Looks the functions up in the library that holds `caller`, an address of code, and in what that needs; else among what the
/// process exports. Null with one line on stderr where one is missing, where ggml is of another version than the headers that
/// this was built with, or where another copy of ggml has been taken before.
const Host* find_host(const void* caller);

/// What find_host() found.
const Host& host();

/// One line on stderr, with the name of the plug-in in front.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

}  // namespace headwater::ggml
