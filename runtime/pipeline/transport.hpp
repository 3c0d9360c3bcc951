#pragma once

#include <cstddef>

namespace headwater::pipeline {

/// Messages between the processes of a job, as libheadwater-mpi.so offers them: a table of C functions, so that the program
/// needs no MPI to be built, linked or started (ADR 32). All of it is called by one thread.
struct Transport {
  int rank = 0;
  int size = 0;
  const char* library = "";  ///< name and version
  /// Begins to send `size` bytes, which must stay as they are until done() says so. Null: it failed.
  void* (*send)(const void* bytes, int size, int to, int tag) = nullptr;
  /// Finds a message with the tag that has come or begins to: a handle for receive(), its sender and its size. Null: none.
  void* (*find)(int tag, int* from, int* size) = nullptr;
  /// Begins to receive what find() found. Null: it failed.
  void* (*receive)(void* found, void* bytes, int size) = nullptr;
  /// 1: what send() or receive() returned is done, and forgotten; 0: not yet; -1: it failed.
  int (*done)(void* request) = nullptr;
  /// Ends all processes of the job with this status.
  void (*abort)(int status) = nullptr;
  /// The last call: returns when every rank has made it.
  void (*finish)() = nullptr;
};

/// The one symbol of the shared object. 0, or a line in `error`.
using StartTransport = int (*)(Transport* transport, char* error, std::size_t error_size);
inline constexpr const char* kStartTransport = "headwater_start_transport";

}  // namespace headwater::pipeline
