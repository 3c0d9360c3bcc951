// A transport without MPI, which a test loads in its place.
#include "tests/pipeline/scripted_transport.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/pipeline/transport.hpp"

namespace headwater::pipeline {
namespace {

Script script;
Script::Message found;
char request;  // every one is done at once

void* send(const void* /*bytes*/, int size, int /*to*/, int tag) {
  const std::lock_guard lock(script.mutex);
  script.sent[tag].push_back(static_cast<std::size_t>(size));
  return &request;
}

void* find(int tag, int* from, int* size) {
  const std::lock_guard lock(script.mutex);
  if (script.coming[tag].empty()) return nullptr;
  found = std::move(script.coming[tag].front());
  script.coming[tag].pop_front();
  *from = found.from;
  *size = found.size;
  return &found;
}

void* receive(void* /*found*/, void* bytes, int /*size*/) {
  std::memcpy(bytes, found.bytes.data(), found.bytes.size());
  return &request;
}

int done(void* /*request*/) { return 1; }
void abort(int /*status*/) {}
void finish() {}

}  // namespace

extern "C" __attribute__((visibility("default"))) Script* headwater_script() { return &script; }

extern "C" __attribute__((visibility("default"))) int headwater_start_transport(Transport* transport,
                                                                                char* /*error*/,
                                                                                std::size_t /*error_size*/) {
  *transport = {script.rank, script.size, "a script", send, find, receive, done, abort, finish};
  return 0;
}

}  // namespace headwater::pipeline
